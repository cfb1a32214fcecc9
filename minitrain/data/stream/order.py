"""The order of rows: a function of (seed, epoch) alone, on every rank.

Ranks and workers that draw the same order need not tell one another anything, and a run that is
resumed draws it again: its place is two numbers, the epoch and how many samples were consumed.
Cost: 8 bytes a row, and a sort of all rows, once an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Order(Protocol):
    """`len` samples an epoch; called, the rows themselves."""

    def __len__(self) -> int: ...

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        """(samples,) int64 rows; one may come several times, or never."""
        ...


@dataclass(frozen=True)
class InOrder:
    """Every row once, as they lie."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        return np.arange(self.rows)


@dataclass(frozen=True)
class Shuffled:
    """Every row once, in an order that each epoch draws anew."""

    rows: int

    def __len__(self) -> int:
        return self.rows

    def __call__(self, seed: int, epoch: int) -> np.ndarray:
        return permutation(self.rows, seed, epoch)


def permutation(count: int, *seeds: int) -> np.ndarray:
    """(count,) int64, drawn from the seeds; PCG64's raw stream is the same on every platform."""
    bits = np.random.PCG64(np.random.SeedSequence(seeds))
    return np.argsort(bits.random_raw(count), kind="stable")
