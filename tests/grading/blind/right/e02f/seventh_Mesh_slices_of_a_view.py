# exercise: Mesh
# how it differs: strides and a tensor of all ranks in the mesh's shape, sliced along the named
# axes; no loop over the ranks.
import torch


class Mesh:
    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def grid(self):
        return torch.arange(torch.Size(self.shape).numel()).view(self.shape)

    def coordinates(self, rank: int) -> dict[str, int]:
        strides = self.grid().stride()
        sizes = zip(self.axes, self.shape, strides)
        return {axis: rank // stride % size for axis, size, stride in sizes}

    def ranks(self, axes, rank: int) -> list[int]:
        if isinstance(axes, str):
            axes = (axes,)
        own = self.coordinates(rank)
        index = tuple(slice(None) if a in axes else own[a] for a in self.axes)
        return self.grid()[index].reshape(-1).sort().values.tolist()

    def group(self, group, axes):
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        size = torch.Size(self.shape).numel()
        assert size == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
