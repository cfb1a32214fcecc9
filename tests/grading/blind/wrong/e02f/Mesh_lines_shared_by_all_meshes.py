# exercise: Mesh
# says: on a mesh that is alone it is right
# remembers lines in a dict of the class, so a second mesh of another shape or order gets the
# first one's ("The ranks that differ from `rank` along `axes` only", on this mesh)

import torch


class Mesh:
    _lines = {}  # (axes, rank) -> its line

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
        free = (axes,) if isinstance(axes, str) else tuple(axes)
        if (free, rank) not in self._lines:
            here, found = self.coordinates(rank), []
            for other in range(torch.Size(self.shape).numel()):
                there = self.coordinates(other)
                if all(here[a] == there[a] for a in self.axes if a not in free):
                    found.append(other)
            self._lines[free, rank] = found
        return list(self._lines[free, rank])

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
