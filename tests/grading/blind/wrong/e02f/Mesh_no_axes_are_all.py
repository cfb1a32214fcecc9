# exercise: Mesh
# says: those are all ranks: along no axis a rank is alone
# `axes or self.axes` takes "none" for all axes; the docstring says "or of none, which leaves the
# rank itself".
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
        axes = [axes] if isinstance(axes, str) else axes or self.axes
        fixed, here = set(self.axes) - set(axes), self.coordinates(rank)
        every = range(torch.Size(self.shape).numel())
        where = [self.coordinates(other) for other in every]
        return [r for r in every if all(where[r][a] == here[a] for a in fixed)]

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
