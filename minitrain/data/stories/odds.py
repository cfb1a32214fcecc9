"""The odds of the tiny-story language: every random choice is one byte against one table.

The weights of a `Table` are whole numbers that sum to 256, so the probability of each choice is
an exact fraction, independent of a platform's floating point. Choices that are impossible in a
state (walking to where one already is) are banned: the others keep their ratios, and
p = w / (256 - b) with b the weight of the banned ones.

Related lists (jobs, places, objects, adjectives) are arranged on a circle in the order of their
themes: a baker is likelier at the bakery, with a loaf, and a loaf is likelier to be warm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, log

import numpy as np

TOTAL = 256
NATS = (inf, *(log(TOTAL / count) for count in range(1, TOTAL + 1)))  # NATS[w] = -log(w / 256)


@dataclass(frozen=True)
class Table:
    """A distribution over the indices of `weights`."""

    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        assert sum(self.weights) == TOTAL, f"the weights sum to {sum(self.weights)}, not {TOTAL}"

    @cached_property
    def outcome(self) -> tuple[int, ...]:
        """`outcome[byte]` is the index chosen by a random byte."""
        return tuple(i for i, weight in enumerate(self.weights) for _ in range(weight))

    @cached_property
    def nats(self) -> tuple[float, ...]:
        """-log p of each index, if none is banned."""
        return tuple(NATS[weight] for weight in self.weights)

    def nats_without(self, banned: Collection[int]) -> float:
        """The correction if some are banned: -log of the remaining share of the weight."""
        return NATS[TOTAL - sum(self.weights[i] for i in banned)]


def table(raw: Sequence[int]) -> Table:
    """Whole weights in the ratio of `raw`, summing to 256, nonzero wherever `raw` is."""
    spare, total = TOTAL - sum(r > 0 for r in raw), sum(raw)
    weights = [(r > 0) + r * spare // total for r in raw]
    by_remainder = sorted(range(len(raw)), key=lambda i: (-(raw[i] * spare % total), i))
    for i in by_remainder[: TOTAL - sum(weights)]:
        weights[i] += 1
    return Table(tuple(weights))


def ranked(count: int, slope: int) -> Table:
    """A Zipf-like table: the first index is the likeliest. Slope 0 is uniform."""
    return table([100_000 // (10 + slope * i) for i in range(count)])


def around(count: int, others: int, slope: int) -> tuple[Table, ...]:
    """For each of `others` positions on a circle, a distribution over `count` items around it."""
    anchors = [i * count // others for i in range(others)]
    gaps = [[min(abs(i - a), count - abs(i - a)) for i in range(count)] for a in anchors]
    return tuple(table([100_000 // (10 + slope * gap) for gap in row]) for row in gaps)


def yes(weight: int) -> Table:
    """1 with probability weight / 256, else 0."""
    return Table((TOTAL - weight, weight))


EVEN = tuple(ranked(count, 0) for count in range(1, 5))  # EVEN[k] is uniform over k + 1


Pick = Callable[[Table, Collection[int]], int]


SLICE = 1 << 13  # 8-byte numbers drawn at once


class Dice:
    """Choices from random bytes; `nats` is -log p of all picks so far."""

    def __init__(self, random_bytes: Iterator[int]) -> None:
        self.random_bytes, self.nats = random_bytes, 0.0

    def pick(self, table: Table, banned: Collection[int] = ()) -> int:
        """Draws one index, again for as long as it is banned."""
        index = table.outcome[next(self.random_bytes)]
        if banned:
            while index in banned:
                index = table.outcome[next(self.random_bytes)]
            self.nats -= table.nats_without(banned)
        self.nats += table.nats[index]
        return index


def random_bytes(seed: int, name: str) -> Iterator[int]:
    """Endless bytes, the same on every platform and version of NumPy."""
    bits = np.random.PCG64(np.random.SeedSequence([seed, *name.encode()]))
    while True:
        yield from bits.random_raw(SLICE).astype("<u8").tobytes()
