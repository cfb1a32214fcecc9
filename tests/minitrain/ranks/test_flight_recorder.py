"""The board, alone: who is stuck, who came with something else, and what it forgets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from minitrain.ranks.flight_recorder import Board, Channel, stuck


def boards(tmp_path, ranks):
    watching = Board.create(tmp_path / "board", ranks)
    return watching, [Board(tmp_path / "board", ranks, rank) for rank in range(ranks)]


def everyone(rank, ranks, id=7):
    return Channel(id, id, tuple(r for r in range(ranks) if r != rank))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(2, 5))
def test_stuck_is_what_no_order_of_events_can_free(tmp_path_factory, data, ranks):
    """Random waits between pairs, against an oracle that follows chains of waits one by one."""
    watching, own = boards(tmp_path_factory.mktemp("board"), ranks)
    target = {}  # rank -> the rank that it waits for
    ended = data.draw(st.sets(st.integers(0, ranks - 1)))
    for rank in set(range(ranks)) - ended:
        others = [r for r in range(ranks) if r != rank]
        peer = data.draw(st.one_of(st.none(), st.sampled_from(others)))
        own[rank].compute()
        if peer is not None:
            target[rank] = peer
            posting, _ = own[rank].post(Channel(rank * 8 + 1, rank * 8 + 2, (peer,)), "k", "recv")
            own[rank].wait(posting, "file:1", provable=True)

    def is_hopeless(rank):
        seen = set()
        while rank in target and rank not in seen:
            seen.add(rank)
            rank = target[rank]
        return rank in ended or rank in seen

    assert stuck(watching, ended).keys() == {rank for rank in target if is_hopeless(rank)}


def test_whoever_posts_second_learns_of_a_difference(tmp_path):
    _, (first, second) = boards(tmp_path, 2)
    assert first.post(everyone(0, 2), "all_reduce 4", "all_reduce of [4]")[1] is None
    assert second.post(everyone(1, 2), "all_reduce 5", "all_reduce of [5]")[1] == 0
    assert second.words_at(0, 7, 0) == "all_reduce of [4]"


def test_a_board_full_of_channels_goes_on_without_claims(tmp_path):
    watching, (first, second) = boards(tmp_path, 2)
    for number in range(1, 200):
        posting, other = first.post(everyone(0, 2, number), "k", "words")
        assert other is None
    first.wait(posting, "file:1", provable=True)
    second.compute()
    assert stuck(watching, {1}) == {}


def test_ranks_far_ahead_are_compared_as_long_as_the_ring_remembers(tmp_path):
    _, (ahead, behind) = boards(tmp_path, 2)
    for number in range(100):
        assert ahead.post(everyone(0, 2), f"op {number}", "words")[1] is None
    found = [
        behind.post(everyone(1, 2), f"op {n if n != 90 else -1}", "words")[1] for n in range(100)
    ]
    assert [n for n, other in enumerate(found) if other is not None] == [90]
