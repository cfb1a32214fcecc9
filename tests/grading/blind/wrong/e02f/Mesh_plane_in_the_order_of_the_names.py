# exercise: Mesh
# says: in order of rank
# The ranks of a plane come in the order in which its axes are named, so ranks(("tp", "dp"), r)
# on Mesh(dp=2, tp=4) is [0, 4, 1, 5, ...]; the text says "In order of rank".

from itertools import product

import torch


class Mesh:
    """Ranks 0, 1, … on a grid with named axes."""

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
        here, found = self.coordinates(rank), []
        for steps in product(*(range(self[axis]) for axis in axes)):
            there, number = here | dict(zip(axes, steps)), 0
            for axis in self.axes:
                number = number * self[axis] + there[axis]
            found.append(number)
        return found

    def group(self, group, axes):
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
