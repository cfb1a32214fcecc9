"""Ranks as a grid with named axes: `Mesh(dp=2, tp=4)` puts 8 ranks in 2 rows of 4.

The last axis varies fastest, so its neighbours have neighbouring ranks and sit in the same node:
give the axis that talks most the last place (tensor parallelism), as on

              tp 0  1  2  3
    dp 0         0  1  2  3      ranks("tp", 5) = [4, 5, 6, 7]
    dp 1         4  5  6  7      ranks("dp", 5) = [1, 5]

Lab: e02f_four_dimensions. `axis` is a mesh's, `dim` a tensor's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minitrain.errors import InputError, unknown_name
from minitrain.ranks.group import Group


@dataclass(frozen=True, init=False, repr=False)
class Mesh:
    """Named axes in order, e.g. `Mesh(pp=2, dp=2, tp=4)`; an axis of size 1 is allowed."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]

    def __init__(self, **sizes: int) -> None:
        for axis, size in sizes.items():
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise InputError(f"axis {axis} has size {size!r}: give a whole number of 1 or more")
        if not sizes:
            raise InputError("a mesh needs at least one axis: for example Mesh(dp=4)")
        object.__setattr__(self, "axes", tuple(sizes))
        object.__setattr__(self, "shape", tuple(sizes.values()))

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, axis: str) -> int:
        """The size of an axis: `mesh["tp"]`."""
        return self.shape[self._place(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """A rank's place: `Mesh(dp=2, tp=4).coordinates(5) == {"dp": 1, "tp": 1}`."""
        if not 0 <= rank < self.size:
            raise InputError(f"rank {rank} is not on {self}: its ranks are 0 to {self.size - 1}")
        places = {}
        for axis, size in zip(reversed(self.axes), reversed(self.shape)):
            rank, places[axis] = divmod(rank, size)
        return {axis: places[axis] for axis in self.axes}

    def rank(self, coordinates: dict[str, int]) -> int:
        """The rank at these coordinates, one for each axis: the inverse of `coordinates`."""
        if set(coordinates) != set(self.axes):
            raise InputError(f"coordinates {coordinates} on {self}: give one for each axis")
        rank = 0
        for axis, size in zip(self.axes, self.shape):
            if not 0 <= coordinates[axis] < size:
                raise InputError(f"{axis}={coordinates[axis]} is not on {self}: 0 to {size - 1}")
            rank = rank * size + coordinates[axis]
        return rank

    def ranks(self, axis: str | Sequence[str], rank: int) -> list[int]:
        """The ranks on this rank's line along an axis (or its plane along several), in order."""
        along = {self.axes[self._place(name)] for name in self._names(axis)}
        here = self.coordinates(rank)
        return [
            other
            for other in range(self.size)
            if all(self.coordinates(other)[a] == here[a] for a in self.axes if a not in along)
        ]

    def group(self, group: Group, axis: str | Sequence[str]) -> Group:
        """This rank's group along an axis. Collective: every rank of `group` calls it, in order."""
        self.check(group.size)
        return group.split(self.ranks(axis, group.rank)[0])  # a line is known by its first rank

    def check(self, ranks: int) -> None:
        """Raises InputError unless the mesh has exactly this many places."""
        if self.size == ranks:
            return
        product = " × ".join(map(str, self.shape))
        fits = [
            self._resized(axis, ranks) for axis in self.axes if ranks * self[axis] % self.size == 0
        ]
        advice = f", or {' or '.join(map(repr, fits))}" if fits else f", or Mesh(dp={ranks})"
        raise InputError(
            f"{self} has {product} = {self.size} places, but there are {ranks} ranks: "
            f"use {self.size} ranks{advice}"
        )

    def __repr__(self) -> str:
        return f"Mesh({', '.join(f'{a}={n}' for a, n in zip(self.axes, self.shape))})"

    def _place(self, axis: str) -> int:
        if axis not in self.axes:
            raise unknown_name("axis of the mesh", axis, self.axes)
        return self.axes.index(axis)

    def _names(self, axis: str | Sequence[str]) -> Sequence[str]:
        return [axis] if isinstance(axis, str) else axis

    def _resized(self, axis: str, ranks: int) -> Mesh:
        """The same mesh with one axis changed so that it has `ranks` places."""
        sizes = dict(zip(self.axes, self.shape))
        return Mesh(**{**sizes, axis: ranks * self[axis] // self.size})
