# exercise: place
# says: cp is missing
# leaves axes of size 1 out of the mesh it returns, so that mesh["ep"] fails ("The `Mesh` of
# these sizes")

import itertools

import torch

if "Mesh" not in globals():  # an earlier exercise, right

    class Mesh:
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
            free = [axes] if isinstance(axes, str) else axes
            here = self.coordinates(rank)
            found = []
            for other in range(torch.Size(self.shape).numel()):
                there = self.coordinates(other)
                if all(here[a] == there[a] for a in self.axes if a not in free):
                    found.append(other)
            return found

        def group(self, group, axes):
            return group.split(self.ranks(axes, group.rank)[0])

        def check(self, ranks: int):
            assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

        def __repr__(self):
            return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


if "bytes_between" not in globals():  # an earlier exercise, right

    def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
        total = 0
        for axis, nbytes in sent.items():
            for rank in range(torch.Size(mesh.shape).numel()):
                line = mesh.ranks(axis, rank)
                after = line[(line.index(rank) + 1) % len(line)]
                if rank // ranks_per_node != after // ranks_per_node:
                    total += nbytes
        return total


def place(sizes: dict, sent: dict, ranks_per_node: int) -> Mesh:
    long = {axis: size for axis, size in sizes.items() if size > 1}
    sending = {axis: nbytes for axis, nbytes in sent.items() if axis in long}
    meshes = [Mesh(**dict(order)) for order in itertools.permutations(long.items())]
    return min(meshes, key=lambda mesh: bytes_between(mesh, sending, ranks_per_node))
