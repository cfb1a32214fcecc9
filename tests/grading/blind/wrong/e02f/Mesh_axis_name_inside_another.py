# exercise: Mesh
# says: a list of one, it is right
# one axis given as a string is never made a list, so `axis in axes` looks for a part of the
# word: on Mesh(p=2, pp=2) the line along "pp" takes p, too; the docstring: "The ranks that
# differ from `rank` along `axes` only (one name, or several)".

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
        here, found = self.coordinates(rank), []
        for other in range(torch.Size(self.shape).numel()):
            there = self.coordinates(other)
            if all(here[a] == there[a] for a in self.axes if a not in axes):
                found.append(other)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
