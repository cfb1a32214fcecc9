"""The order of rows: a function of (seed, epoch) alone, on every rank.

Ranks and workers draw the same order without communication, and a resumed run draws it again: its
position is two numbers, the epoch and the samples consumed.
Cost: 8 bytes a row, and a sort of all rows, once an epoch.

A curriculum goes from easy to hard (Platanios et al. 2019, 1903.09848, who measure difficulty by
length and sample with replacement). A row becomes eligible once the competence c reaches its rank
among the rows sorted by difficulty; in the first epoch every row still comes exactly once.

    c(t) = min(1, sqrt(t (1 - c0²) + c0²))      t: elapsed share of the ramp
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import Protocol

import numpy as np

from minitrain.data.packing import Packed
from minitrain.errors import InputError


class Order(Protocol):
    """An order: `len` is the samples an epoch, a call returns the rows."""

    def __len__(self) -> int: ...

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        """(samples,) int64 rows; a row may repeat or be absent."""
        ...


@dataclass(frozen=True)
class InOrder:
    """Every row once, in storage order."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        return np.arange(self.rows)


@dataclass(frozen=True)
class Shuffled:
    """Every row once, reshuffled each epoch."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        return permutation(self.rows, seed, epoch)


@dataclass(frozen=True, eq=False)
class Curriculum:
    """An order from easy to hard by `difficulty` (N,): any numbers, the hardest the highest.

    `start`: the share of rows eligible at first; `ramp`: the share of the epoch after which all
    are. The ramp is never slower than reading: there is always an eligible row.
    """

    difficulty: np.ndarray
    start: float = 0.1
    ramp: float = 0.5

    def __post_init__(self) -> None:
        object.__setattr__(self, "difficulty", np.asarray(self.difficulty))
        if self.difficulty.ndim != 1 or not len(self.difficulty):
            raise InputError(
                f"difficulties of shape {self.difficulty.shape}: give one for each row"
            )
        if np.isnan(self.difficulty).any():
            raise InputError("a row's difficulty is nan: give a number for each row")
        if not (0 < self.start <= 1 and 0 < self.ramp <= 1):
            raise InputError(f"start {self.start}, ramp {self.ramp}: use over 0, up to 1")

    def __len__(self) -> int:
        return len(self.difficulty)

    def competence(self, position: int) -> float:
        """The share of rows that are eligible after `position` rows."""
        over = position / (self.ramp * len(self))
        return min(1.0, sqrt(over * (1 - self.start**2) + self.start**2))

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        if epoch > 0:
            return permutation(len(self), seed, epoch)
        ranked = np.argsort(self.difficulty, kind="stable").tolist()
        draws = np.random.PCG64(np.random.SeedSequence([seed, 0])).random_raw(len(self)).tolist()
        waiting: list[int] = []
        order, known = [], 0
        for position, draw in enumerate(draws):
            may_come = max(position + 1, ceil(self.competence(position) * len(self)))
            waiting += ranked[known:may_come]
            known = max(known, may_come)
            chosen = draw % len(waiting)
            waiting[chosen], waiting[-1] = waiting[-1], waiting[chosen]
            order.append(waiting.pop())
        return np.array(order, np.int64)


def mean_length(packed: Packed) -> np.ndarray:
    """(N,) the mean length of the documents in each row; a document cut in two counts as two."""
    counts = packed.valid.sum(1)
    changes = (packed.documents[:, 1:] != packed.documents[:, :-1]) & packed.valid[:, 1:]
    documents = changes.sum(1) + 1
    return (counts / documents).double().numpy()


def permutation(count: int, *seeds: int) -> np.ndarray:
    """(count,) int64, drawn from the seeds; PCG64's raw stream is the same on every platform."""
    bits = np.random.PCG64(np.random.SeedSequence(seeds))
    return np.argsort(bits.random_raw(count), kind="stable")
