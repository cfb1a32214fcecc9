"""Placement of a mesh on nodes: what of the ranks' traffic has to leave the node.

Ranks 0 … n-1 share the first node, the next n the second: the order of a mesh's axes decides who
is together. Links inside a node are some ten times as fast as those between nodes, so the axis that
talks most comes last (`model.AXES`):

    Mesh(dp=2, tp=4)   node 0  tp 0 1 2 3 of dp 0     activations stay inside, gradients cross
    Mesh(tp=4, dp=2)   node 0  tp 0 0 1 1             every layer's activations cross, four times

Collectives count as rings in the order of their group, each rank sending to its next; an
all-to-all as even. `place` finds the best order by counting the same edges before anything runs:
the chattiest axis last is a rule of thumb, and wrong where that axis is longer than a node.
Paper: Narayanan et al., arXiv 2104.04473, section 3.1. Lab: e02f_four_dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations

from minitrain.errors import InputError
from minitrain.measure.traffic import Op, Trace
from minitrain.parallel.mesh import Mesh


@dataclass(frozen=True)
class NodeTraffic:
    """Bytes that all ranks together send to ranks of their own node, and to those of others."""

    inside: int
    between: int


def node_traffic(traces: Iterable[Trace], ranks_per_node: int) -> NodeTraffic:
    """Traffic inside and between nodes, from `results.traces` of a launch."""
    if ranks_per_node < 1:
        raise InputError(f"a node with {ranks_per_node} ranks: give 1 or more, such as 8")
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
    """Bytes that leave a node when every rank sends `sent[axis]` to its next along each axis."""
    total: float = 0
    for axis, nbytes in sent.items():
        for rank in range(mesh.size):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]  # the last one's next is the first
            if after // ranks_per_node != rank // ranks_per_node:
                total += nbytes
    return total


def place(sizes: Mapping[str, int], sent: Mapping[str, float], ranks_per_node: int) -> Mesh:
    """The order of these axes that sends the least between nodes: all n! are counted."""
    meshes = [Mesh(**{axis: sizes[axis] for axis in order}) for order in permutations(sizes)]
    return min(meshes, key=lambda mesh: bytes_between(mesh, sent, ranks_per_node))
