"""What the ranks of a unit agree on, where their wires are not equally fast."""

from __future__ import annotations

from dataclasses import dataclass, field

from minitrain.inference.disaggregated.inbox import Piece
from minitrain.inference.disaggregated.sending import Kind
from minitrain.inference.disaggregated.unit import AgreedInbox, Unit
from minitrain.ranks.launch import launch


def piece(source: int, number: int) -> Piece:
    return Piece(source, number, Kind.PAGES, 0, None, -1, None, 0.0, 0.0)


@dataclass
class Script:
    """An inbox that brings, each time that it is asked, the next of these lists."""

    rounds: list[list[Piece]]
    waits: int = 0
    left: list[list[Piece]] = field(init=False)

    def __post_init__(self) -> None:
        self.left = list(self.rounds)

    def arrived(self) -> list[Piece]:
        return self.left.pop(0) if self.left else []

    def wait(self) -> None:
        self.waits += 1


ROUNDS = {  # by rank: the first sender is early here, the second one there
    0: [[piece(4, 1), piece(4, 2)], [], [piece(5, 3)]],
    1: [[piece(5, 3)], [piece(4, 1)], [piece(4, 2)]],
}


def taken(group) -> tuple[list[list[int]], list[int]]:
    script = Script(ROUNDS[group.rank])
    inbox = AgreedInbox(script, [4, 5], Unit.of(group, 2))
    numbers, waits = [], []
    for _ in range(3):
        numbers.append([one.number for one in inbox.arrived()])
        before = script.waits
        inbox.wait()
        waits.append(script.waits - before)
    return numbers, waits


def test_what_all_ranks_have_is_here_and_in_one_order():
    (numbers, waits), (others, other_waits) = launch(taken, ranks=2)
    assert numbers == others == [[], [1], [2, 3]]
    # who holds what another lacks does not wait, or both would, for ever
    assert waits == [0, 0, 1] and other_waits == [0, 0, 1]


def placed(group) -> tuple[int, int, int, list[int]]:
    unit = Unit.of(group, 2)
    return unit.number, unit.place, unit.peer(1 - unit.number), unit.least([group.rank, 7])


def test_ranks_in_a_row_are_a_unit_and_know_their_peers():
    found = launch(placed, ranks=4)
    assert found == [(0, 0, 2, [0, 7]), (0, 1, 3, [0, 7]), (1, 0, 0, [2, 7]), (1, 1, 1, [2, 7])]
