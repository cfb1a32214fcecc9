# right: Mesh computes with strides instead of divmod and a search; copies divides the number of ranks instead of multiplying; place keeps the last of several equally good orders; bytes_between goes line by line.
from itertools import permutations, product
from math import prod

import torch


class Mesh:
    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def _strides(self):
        return {a: prod(self.shape[i + 1 :]) for i, a in enumerate(self.axes)}

    def coordinates(self, rank: int) -> dict[str, int]:
        return {a: rank // stride % self[a] for a, stride in self._strides().items()}

    def ranks(self, axes, rank: int) -> list[int]:
        asked = (axes,) if isinstance(axes, str) else tuple(axes)
        named = [a for a in self.axes if a in asked]
        strides, here = self._strides(), self.coordinates(rank)
        corner = rank - sum(here[a] * strides[a] for a in named)
        steps = [range(0, self[a] * strides[a], strides[a]) for a in named]
        return sorted(corner + sum(step) for step in product(*steps))

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def copies(layout, mesh):
    cut = {"pp", *layout.split}
    held = prod(mesh.shape) // prod(mesh[a] for a in mesh.axes if a in cut)
    return held * 2 if "pp" in layout.partial else held


def bytes_between(mesh, sent, ranks_per_node):
    everyone, total = range(prod(mesh.shape)), 0
    for axis in sent:
        lines = {tuple(mesh.ranks(axis, rank)) for rank in everyone}
        for line in lines:
            nodes = [rank // ranks_per_node for rank in line]
            leaving = sum(a != b for a, b in zip(nodes, nodes[1:] + nodes[:1]))
            total += leaving * sent[axis]
    return total


def place(sizes, sent, ranks_per_node):
    best, least = None, float("inf")
    for names in permutations(sizes):
        mesh = Mesh(**{name: sizes[name] for name in names})
        crossing = bytes_between(mesh, sent, ranks_per_node)
        if crossing <= least:
            best, least = mesh, crossing
    return best
