"""Random choices that count what they cost: random bytes against tables of odds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import numpy as np

from minitrain.data._odds import Table

Pick = Callable[[Table, Collection[int]], int]
SMALLEST_SLICE = 1 << 13  # numbers of 8 bytes drawn at once


class Dice:
    """Choices from random bytes; `nats` is -log p of all that was picked so far."""

    def __init__(self, random_bytes: Iterator[int]) -> None:
        self.random_bytes, self.nats = random_bytes, 0.0

    def pick(self, table: Table, banned: Collection[int] = ()) -> int:
        """One index, drawn again while it is one of the banned."""
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
        yield from bits.random_raw(SMALLEST_SLICE).astype("<u8").tobytes()
