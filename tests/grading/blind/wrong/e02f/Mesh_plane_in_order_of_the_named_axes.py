# exercise: Mesh
# says: in order of rank
# a plane's ranks come in the order in which the axes are named, so ranks(("tp", "dp"), 0) is
# not sorted ("In order of rank")

import itertools

import torch


class Mesh:
    def __init__(self, **sizes: int):  # in order: Mesh(dp=2, tp=4)
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:  # mesh["tp"]
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        places = {}
        for axis in reversed(self.axes):
            rank, places[axis] = divmod(rank, self[axis])
        return {axis: places[axis] for axis in self.axes}

    def ranks(self, axes, rank: int) -> list[int]:
        free = [axes] if isinstance(axes, str) else list(axes)
        here, found = self.coordinates(rank), []
        for digits in itertools.product(*(range(self[a]) for a in free)):
            there = {**here, **dict(zip(free, digits))}
            number = 0
            for axis in self.axes:
                number = number * self[axis] + there[axis]
            found.append(number)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
