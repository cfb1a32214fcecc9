# right: a tensor of rank numbers, indexed; coordinates by unravel_index.
import torch


class Mesh:
    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        place = torch.unravel_index(torch.tensor(rank), self.shape)
        return {axis: int(i) for axis, i in zip(self.axes, place)}

    def ranks(self, axes, rank: int) -> list[int]:
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        grid = torch.arange(torch.Size(self.shape).numel()).reshape(self.shape)
        here = self.coordinates(rank)
        index = tuple(slice(None) if a in names else here[a] for a in self.axes)
        return grid[index].reshape(-1).tolist()

    def group(self, group, axes):
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
