"""Ranks that cut one model among themselves: a unit, which reads prompts or goes on with them.

    unit 0, prefill   rank 0  heads 0 1  ──pages of heads 0 1──▶  rank 2   unit 1, decode
                      rank 1  heads 2 3  ──pages of heads 2 3──▶  rank 3

Each rank of a unit plans the same steps as the others without a word, as in any tensor-parallel
engine (engine/runner.py); pages go from a rank to the one with the same heads. What is not the same
on all is what a clock shows and what a wire has brought, so these are agreed upon before a step:
what every rank of the unit has, in the order of who sent it, counts as here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from minitrain.inference.disaggregated.inbox import Inbox, Piece
from minitrain.model.transformer import Transformer
from minitrain.parallel.tensor.layers import tensor_parallel
from minitrain.ranks.group import Group


@dataclass(frozen=True)
class Unit:
    """This rank is number `place` of unit `number`; `group` is the unit's, None for one rank."""

    number: int
    place: int
    size: int
    group: Group | None

    @classmethod
    def of(cls, group: Group, size: int) -> Unit:
        """Cuts the launch's group into units of `size` consecutive ranks."""
        number, place = divmod(group.rank, size)
        return cls(number, place, size, group.split(number) if size > 1 else None)

    def peer(self, unit: int) -> int:
        """The rank of another unit that has the same heads."""
        return unit * self.size + self.place

    def cut(self, model: Transformer) -> Transformer:
        return model if self.group is None else tensor_parallel(model, self.group)

    def least(self, counts: Sequence[int]) -> list[int]:
        """The minimum of each number over the ranks of the unit."""
        if self.group is None:
            return list(counts)
        agreed = torch.tensor(counts, dtype=torch.int64, device=self.group.device)
        return self.group.all_reduce(agreed, "min").tolist()


class AgreedInbox:
    """Gives the messages that all ranks of the unit have. A rank that holds one which others lack
    does not wait for another: the others are about to get theirs, and agree then."""

    def __init__(self, inbox: Inbox, sources: Sequence[int], unit: Unit) -> None:
        self.inbox, self.unit = inbox, unit
        self.here: dict[int, deque[Piece]] = {source: deque() for source in sources}

    def arrived(self) -> list[Piece]:
        for piece in self.inbox.arrived():
            self.here[piece.source].append(piece)
        counts = self.unit.least([len(pieces) for pieces in self.here.values()])
        return [
            pieces.popleft()
            for pieces, count in zip(self.here.values(), counts)
            for _ in range(count)
        ]

    def wait(self) -> None:
        if not any(self.here.values()):
            self.inbox.wait()
