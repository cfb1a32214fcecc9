"""Curriculum: from easy to hard, the rows that may come at each point of the run.

    competence c(t) = min(1, sqrt(t (1 - c0²) + c0²))      t: the share of the ramp that is over

A row may come once c has reached its place among the rows sorted by difficulty; which of those that
may is drawn. In the first epoch every row still comes exactly once; later ones are shuffled.
Source: Platanios et al. 2019, "Competence-based curriculum learning" (1903.09848), who measure
difficulty by length and by the rarity of the words, and sample with replacement.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt

import numpy as np

from minitrain.data.packing import PADDING, Packed
from minitrain.data.stream.order import permutation
from minitrain.errors import InputError


@dataclass(frozen=True, eq=False)
class Curriculum:
    """An order of rows by `difficulty` (N,): any numbers, the hardest the highest.

    `start`: the share of the rows that may come at once; `ramp`: the share of the epoch after which
    all may. The ramp is never slower than reading: there is always a row that may come.
    """

    difficulty: np.ndarray
    start: float = 0.1
    ramp: float = 0.5

    def __post_init__(self) -> None:
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
        """The share of the rows that may come when `position` rows have come."""
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


def rarity(packed: Packed) -> np.ndarray:
    """(N,) the mean of -log p over each row's tokens, p a token's share in all rows."""
    valid = packed.documents != PADDING
    tokens = packed.targets.where(valid, 0).long().numpy()
    counts = np.bincount(tokens[valid.numpy()])
    nats = -np.log(np.maximum(counts, 1) / counts.sum())
    return (nats[tokens] * valid.numpy()).sum(1) / np.maximum(1, valid.numpy().sum(1))
