# exercise: Mesh
# says: the right ranks in another order
# Builds a plane in the order in which the axes are named, so ("tp", "dp") does not come in
# order of rank.

import itertools

import torch


class Mesh:
    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        digits = []
        for size in reversed(self.shape):
            digits.append(rank % size)
            rank //= size
        return dict(zip(self.axes, reversed(digits)))

    def ranks(self, axes, rank: int) -> list[int]:
        if isinstance(axes, str):
            axes = [axes]
        place, found = self.coordinates(rank), []
        for values in itertools.product(*(range(self[a]) for a in axes)):
            other = {**place, **dict(zip(axes, values))}
            number = 0
            for axis in self.axes:
                number = number * self[axis] + other[axis]
            found.append(number)
        return found

    def group(self, group, axes):
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
