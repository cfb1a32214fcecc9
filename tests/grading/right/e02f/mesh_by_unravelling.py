import math

import torch


class Mesh:
    def __init__(self, **sizes):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis):
        return self.shape[self.axes.index(axis)]

    @property
    def grid(self):
        return torch.arange(math.prod(self.shape)).view(self.shape)

    def coordinates(self, rank):
        place = (self.grid == rank).nonzero()[0].tolist()
        return dict(zip(self.axes, place))

    def ranks(self, axes, rank):
        here = self.coordinates(rank)
        index = tuple(slice(None) if axis in (axes, *axes) else here[axis] for axis in self.axes)
        return self.grid[index].flatten().tolist()
