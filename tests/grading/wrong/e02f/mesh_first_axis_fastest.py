# exercise: Mesh
# says: as if the first axis varied fastest

import math


class Mesh:
    def __init__(self, **sizes):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis):
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank):
        places = {}
        for axis in self.axes:
            rank, places[axis] = divmod(rank, self[axis])
        return {axis: places[axis] for axis in self.axes}

    def ranks(self, axes, rank):
        axes = [axes] if isinstance(axes, str) else axes
        here = self.coordinates(rank)
        others = range(math.prod(self.shape))
        return [
            o
            for o in others
            if all(self.coordinates(o)[a] == here[a] for a in self.axes if a not in axes)
        ]
