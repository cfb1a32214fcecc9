"""A curve of any length in a few hundred points: the mean, the lowest and the highest of each.

When there are too many, neighbours are joined in pairs; so a spike of one step in a million is
still seen, and a look costs the same on the first day and on the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

MOST = 120


class Point(NamedTuple):
    x: float  # of the last value in it
    mean: float
    low: float
    high: float


@dataclass
class Curve:
    """`add` values by growing x; those that are not finite are counted and left out."""

    points: list[Point] = field(default_factory=list)
    stride: int = 1  # values in a point
    not_finite: int = 0
    _open: list[float] = field(default_factory=list)
    _x: float = 0.0

    def add(self, x: float, value: float) -> None:
        if not math.isfinite(value):
            self.not_finite += 1
            return
        self._open.append(value)
        self._x = x
        if len(self._open) == self.stride:
            self.points.append(self._closed())
            self._open.clear()
            if len(self.points) == MOST:
                pairs = zip(self.points[::2], self.points[1::2])
                self.points, self.stride = [_join(a, b) for a, b in pairs], 2 * self.stride

    def zeros(self) -> Curve:
        """As many values, all 0: what begins late beside what was there."""
        points = [Point(point.x, 0.0, 0.0, 0.0) for point in self.points]
        return Curve(points, self.stride, 0, [0.0] * len(self._open), self._x)

    def seen(self) -> list[Point]:
        """With what has come since the last whole point."""
        return [*self.points, self._closed()] if self._open else self.points

    def _closed(self) -> Point:
        values = self._open
        return Point(self._x, sum(values) / len(values), min(values), max(values))


def _join(a: Point, b: Point) -> Point:
    return Point(b.x, (a.mean + b.mean) / 2, min(a.low, b.low), max(a.high, b.high))
