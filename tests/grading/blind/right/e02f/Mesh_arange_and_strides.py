# right: strides for the coordinates, a reshaped arange that is indexed for the lines.
import torch


class Mesh:
    """Ranks 0, 1, … on a grid with named axes. About 10 lines of yours."""

    def __init__(self, **sizes: int):  # in order: Mesh(dp=2, tp=4)
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:  # mesh["tp"]
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is."""
        strides = torch.empty(self.shape, device="meta").stride()
        return {a: rank // st % n for a, st, n in zip(self.axes, strides, self.shape)}

    def ranks(self, axes, rank: int) -> list[int]:
        """The ranks that differ from `rank` along `axes` only."""
        named = {axes} if isinstance(axes, str) else set(axes)
        grid = torch.arange(torch.Size(self.shape).numel()).reshape(self.shape)
        at = self.coordinates(rank)
        where = tuple(slice(None) if a in named else at[a] for a in self.axes)
        return sorted(grid[where].flatten().tolist())

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"
