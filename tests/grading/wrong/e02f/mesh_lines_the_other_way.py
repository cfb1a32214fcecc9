# exercise: Mesh
# says: differs along them and shares

import math


class Mesh:
    def __init__(self, **sizes):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis):
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank):
        places = {}
        for axis in reversed(self.axes):
            rank, places[axis] = divmod(rank, self[axis])
        return {axis: places[axis] for axis in self.axes}

    def ranks(self, axes, rank):
        axes = [axes] if isinstance(axes, str) else axes
        here = self.coordinates(rank)
        others = range(math.prod(self.shape))
        return [
            o
            for o in others
            if all(self.coordinates(o)[a] == here[a] for a in self.axes if a in axes)
        ]
