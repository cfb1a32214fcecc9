# exercise: bytes_between
# walks each axis by its stride and counts, without asking for a line; place keeps the best so far,
# copies is one product
import itertools
import math

import torch


class Mesh:
    """Ranks 0, 1, … on a grid with named axes."""

    def __init__(self, **sizes: int):  # in order: Mesh(dp=2, tp=4)
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:  # mesh["tp"]
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is: {"dp": 1, "tp": 1}, axes in the mesh's order."""
        digits = []
        for size in reversed(self.shape):  # the last axis is the last digit
            rank, digit = divmod(rank, size)
            digits.append(digit)
        return dict(zip(self.axes, reversed(digits)))

    def ranks(self, axes, rank: int) -> list[int]:
        """The ranks that differ from `rank` along `axes` only."""
        free = {axes} if isinstance(axes, str) else set(axes)
        fixed = [axis for axis in self.axes if axis not in free]
        here = self.coordinates(rank)
        found = []
        for other in range(math.prod(self.shape)):
            there = self.coordinates(other)
            if all(there[axis] == here[axis] for axis in fixed):
                found.append(other)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        size = torch.Size(self.shape).numel()
        assert size == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def copies(layout, mesh) -> int:
    stages = 2 if "pp" in layout.partial else 1
    plain = set(mesh.axes) - set(layout.split) - {"pp"}
    return stages * math.prod(mesh[axis] for axis in plain)


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    def leaving(axis):
        size = mesh[axis]
        stride = math.prod(mesh.shape[mesh.axes.index(axis) + 1 :])
        for rank in range(math.prod(mesh.shape)):
            place = rank // stride % size
            after = rank + ((place + 1) % size - place) * stride
            yield rank // ranks_per_node != after // ranks_per_node

    return float(sum(sent[axis] * sum(leaving(axis)) for axis in sent))


def place(sizes: dict, sent: dict, ranks_per_node: int) -> Mesh:
    best, least = None, math.inf
    for order in itertools.permutations(sizes):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        leaves = bytes_between(mesh, sent, ranks_per_node)
        if best is None or leaves <= least:
            best, least = mesh, leaves
    return best
