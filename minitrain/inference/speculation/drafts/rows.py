"""Assigns rows of a proposer's cache to requests; the least recently used one makes room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from itertools import islice


class Rows:
    """A row may be another request's than before: who uses it compares what it holds."""

    def __init__(self, count: int) -> None:
        self.free = list(range(count))
        self.taken: OrderedDict[Hashable, int] = OrderedDict()  # asked for longest ago first

    def of(self, keys: Sequence[Hashable]) -> list[int]:
        """One each, of `count` different keys at most."""
        for key in keys:
            if key in self.taken:
                self.taken.move_to_end(key)
        for key in keys:
            if key not in self.taken:
                self.taken[key] = self.free.pop() if self.free else self.taken.popitem(False)[1]
        return [self.taken[key] for key in keys]

    def forget(self, key: Hashable) -> None:
        if key in self.taken:
            self.free.append(self.taken.pop(key))


def batched(items: Sequence[int], size: int) -> Iterator[list[int]]:
    """Runs of `size`, the last one shorter (itertools has it from Python 3.12 on)."""
    rest = iter(items)
    while run := list(islice(rest, size)):
        yield run
