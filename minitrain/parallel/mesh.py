"""Ranks as a grid with named axes: `Mesh(dp=2, tp=4)` puts 8 ranks in 2 rows of 4.

The last axis varies fastest, so its neighbours have neighbouring ranks and sit in the same node:
put the axis with the most traffic last (tensor parallelism), as on

              tp 0  1  2  3
    dp 0         0  1  2  3      ranks("tp", 5) = [4, 5, 6, 7]
    dp 1         4  5  6  7      ranks("dp", 5) = [1, 5]

Ranks 0 … n-1 share the first node, the next n the second: the order of a mesh's axes decides which
ranks share a node. Links inside a node are some ten times as fast as those between nodes, so the
axis with the most traffic comes last (`hybrid.model.AXES`):

    Mesh(dp=2, tp=4)   node 0  tp 0 1 2 3 of dp 0     activations stay inside, gradients cross
    Mesh(tp=4, dp=2)   node 0  tp 0 0 1 1             every layer's activations cross, four times

Collectives are counted as rings in group order, each rank sending to its next; an all-to-all as
uniform. `place` finds the best order by counting the same edges before anything runs: putting the
busiest axis last is a rule of thumb, and wrong if that axis is longer than a node.
Paper: Narayanan et al., arXiv 2104.04473, section 3.1. Lab: e02f_four_dimensions.
`axis` is a mesh's, `dim` a tensor's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from minitrain.errors import InputError, check_whole, unknown_name
from minitrain.measure.traffic import Op, Trace
from minitrain.ranks.group import Group


@dataclass(frozen=True, init=False, repr=False)
class Mesh:
    """Named axes in order, e.g. `Mesh(pp=2, dp=2, tp=4)`; an axis of size 1 is allowed."""

    axes: tuple[str, ...]
    shape: tuple[int, ...]

    def __init__(self, **sizes: int) -> None:
        for axis, size in sizes.items():
            check_whole(f"the size of axis {axis}", size)
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
        return group.split(self.ranks(axis, group.rank)[0])  # its first rank identifies a line

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


# ---- placement on nodes ----


@dataclass(frozen=True)
class NodeTraffic:
    """Bytes that all ranks together send within their own node, and to other nodes."""

    inside: int
    between: int


def node_traffic(traces: Iterable[Trace], ranks_per_node: int) -> NodeTraffic:
    """Traffic inside and between nodes, from `results.traces` of a launch."""
    check_whole("ranks_per_node", ranks_per_node)
    total: Counter[bool] = Counter()
    for trace in traces:
        for op in trace.ops:
            for receiver, sent in receivers(op, trace.rank).items():
                total[receiver // ranks_per_node != trace.rank // ranks_per_node] += sent
    return NodeTraffic(inside=total[False], between=total[True])


def receivers(op: Op, rank: int) -> dict[int, int]:
    """Bytes that `rank` sends to each rank of the launch in one of its operations."""
    place = op.members.index(rank)
    if op.kind == "send":
        return {op.members[op.peer]: op.sent_bytes}
    if op.kind != "all_to_all":
        return {op.members[(place + 1) % op.ranks]: op.sent_bytes}
    others = [member for member in op.members if member != rank]
    return {other: op.sent_bytes // len(others) for other in others}


def bytes_between(mesh: Mesh, sent: Mapping[str, float], ranks_per_node: int) -> float:
    """Bytes that leave a node if every rank sends `sent[axis]` to its neighbour along each axis."""
    total: float = 0
    for axis, nbytes in sent.items():
        for rank in range(mesh.size):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]  # wraps around
            if after // ranks_per_node != rank // ranks_per_node:
                total += nbytes
    return total


def place(sizes: Mapping[str, int], sent: Mapping[str, float], ranks_per_node: int) -> Mesh:
    """The axis order that sends the fewest bytes between nodes; tries all n! orders."""
    meshes = [Mesh(**{axis: sizes[axis] for axis in order}) for order in permutations(sizes)]
    return min(meshes, key=lambda mesh: bytes_between(mesh, sent, ranks_per_node))
