# exercise: place
# says: cp is missing
# leaves axes of size 1 out of the mesh to have fewer orders to try, so mesh["ep"] fails
# afterwards; the docstring: "The `Mesh` of these sizes".

from itertools import permutations

import torch


class _Mesh:  # exercise 1, right
    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        places = {}
        for axis in reversed(self.axes):
            rank, places[axis] = divmod(rank, self[axis])
        return {axis: places[axis] for axis in self.axes}

    def ranks(self, axes, rank: int) -> list[int]:
        axes = [axes] if isinstance(axes, str) else list(axes)
        fixed = [axis for axis in self.axes if axis not in axes]
        here, found = self.coordinates(rank), []
        for other in range(torch.Size(self.shape).numel()):
            there = self.coordinates(other)
            if all(here[axis] == there[axis] for axis in fixed):
                found.append(other)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def _bytes_between(mesh, sent, ranks_per_node):  # exercise 5, right
    total = 0
    for axis, nbytes in sent.items():
        for rank in range(torch.Size(mesh.shape).numel()):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            if rank // ranks_per_node != after // ranks_per_node:
                total += nbytes
    return total


def place(sizes, sent, ranks_per_node):
    long = [(axis, size) for axis, size in sizes.items() if size > 1]
    loud = {axis: nbytes for axis, nbytes in sent.items() if sizes.get(axis, 1) > 1}
    meshes = [_Mesh(**dict(order)) for order in permutations(long)]
    return min(meshes, key=lambda mesh: _bytes_between(mesh, loud, ranks_per_node))
