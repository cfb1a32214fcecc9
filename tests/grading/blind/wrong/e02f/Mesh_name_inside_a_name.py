# exercise: Mesh
# says: a list of one, it is right
# asks whether an axis' name is a part of the string `axes`, so "d" counts as named by "dp"
# ("one name, or a list or tuple of several")

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
        here = self.coordinates(rank)
        fixed = [axis for axis in self.axes if axis not in axes]
        found = []
        for other in range(torch.Size(self.shape).numel()):
            there = self.coordinates(other)
            if all(here[axis] == there[axis] for axis in fixed):
                found.append(other)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
