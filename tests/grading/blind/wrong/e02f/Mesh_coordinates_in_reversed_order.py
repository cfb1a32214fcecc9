# exercise: Mesh
# says: come in the order
# coordinates fills its dict from the last axis on and gives it back so: axes in reversed order,
# not in the mesh's.

import torch


class Mesh:
    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        place = {}
        for axis in reversed(self.axes):
            rank, place[axis] = divmod(rank, self[axis])
        return place

    def ranks(self, axes, rank: int) -> list[int]:
        free = {axes} if isinstance(axes, str) else set(axes)
        here = self.coordinates(rank)
        fixed = {a: i for a, i in here.items() if a not in free}
        every = range(torch.Size(self.shape).numel())
        return [r for r in every if fixed.items() <= self.coordinates(r).items()]

    def group(self, group, axes):
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
