# exercise: Mesh
# says: a list comes in order of rank
# A plane is walked in the order in which its axes are named, so its ranks are not in order of
# rank.

import itertools

import torch


class Mesh:
    """Ranks 0, 1, … on a grid with named axes. About 10 lines of yours."""

    def __init__(self, **sizes: int):  # in order: Mesh(dp=2, tp=4)
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:  # mesh["tp"]
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is: {"dp": 1, "tp": 1}, axes in the mesh's order."""
        found = {}
        for axis, size in zip(reversed(self.axes), reversed(self.shape)):
            rank, found[axis] = divmod(rank, size)
        return {axis: found[axis] for axis in self.axes}

    def ranks(self, axes, rank: int) -> list[int]:
        axes = [axes] if isinstance(axes, str) else list(axes)
        mine = self.coordinates(rank)
        found = []
        for places in itertools.product(*(range(self[a]) for a in axes)):
            where = {**mine, **dict(zip(axes, places))}
            number = 0
            for a in self.axes:
                number = number * self[a] + where[a]
            found.append(number)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
