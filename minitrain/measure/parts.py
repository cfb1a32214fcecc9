"""Step time by part: `begin(name)` ends one part and begins the next.

    data ─┬─ forward ─┬─ backward ─┬─ average ─┬─ optimizer ─┬─ between ─┬─ data …
          └ begin("forward")       └ begin("average")        └ evaluation, saving, reports

The parts leave no gaps: their sum is the time between two `take` calls. On a GPU they time the
launching thread, which runs ahead of the kernels until it needs a number. Cost: 0.5 µs a part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple


class Span(NamedTuple):
    """A part of a step, in seconds of its clock."""

    name: str
    start: float
    end: float


class Parts:
    """`now`: a clock, such as a group's; the spans are contiguous."""

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._name, self._start = "between", now()
        self._spans: list[Span] = []

    def begin(self, name: str) -> None:
        at = self.now()
        self._spans.append(Span(self._name, self._start, at))
        self._name, self._start = name, at

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Makes the block a part of its own, inside another."""
        around = self._name
        self.begin(name)
        try:
            yield
        finally:
            self.begin(around)

    def take(self) -> list[Span]:
        """The spans since the last `take`, up to now."""
        self.begin(self._name)
        spans, self._spans = self._spans, []
        return spans
