# exercise: Mesh
# the ranks are a tensor in the shape of the mesh; a line is a slice of it, coordinates come from
# strides
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
        return {
            axis: rank // math.prod(self.shape[i + 1 :]) % self.shape[i]
            for i, axis in enumerate(self.axes)
        }

    def ranks(self, axes, rank: int) -> list[int]:
        """The ranks that differ from `rank` along `axes` only."""
        if isinstance(axes, str):
            axes = (axes,)
        grid = torch.arange(math.prod(self.shape)).reshape(self.shape)
        slices = tuple(
            slice(None) if axis in axes else place
            for axis, place in self.coordinates(rank).items()
        )
        return grid[slices].reshape(-1).tolist()

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        size = torch.Size(self.shape).numel()
        assert size == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
