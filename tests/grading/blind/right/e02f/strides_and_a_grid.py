# right: Mesh by strides, its lines by slicing a grid of rank numbers; copies by a division, over the mesh's axes
import math

import torch


class Mesh:
    def __init__(self, **sizes: int):  # in order: Mesh(dp=2, tp=4)
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:  # mesh["tp"]
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        where = {}
        for place, axis in enumerate(self.axes):
            stride = math.prod(self.shape[place + 1 :])
            where[axis] = rank // stride % self.shape[place]
        return where

    def ranks(self, axes, rank: int) -> list[int]:
        named = {axes} if isinstance(axes, str) else set(axes)
        grid = torch.arange(math.prod(self.shape)).view(self.shape)
        here = self.coordinates(rank)
        at = tuple(slice(None) if a in named else here[a] for a in self.axes)
        return grid[at].flatten().tolist()

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def copies(layout, mesh) -> int:
    ranks = math.prod(mesh.shape)
    cut = math.prod(mesh[a] for a in mesh.axes if a in layout.split or a == "pp")
    holders = ranks // cut
    return 2 * holders if "pp" in layout.partial else holders
