# right: Mesh is a torch grid of rank numbers that is sliced; bytes_between rolls that grid by one along each axis and compares nodes elementwise; place is a recursion over what comes first.
import torch


class Mesh:
    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())
        self.grid = torch.arange(torch.Size(self.shape).numel()).view(self.shape)

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        where = (self.grid == rank).nonzero()[0].tolist()
        return dict(zip(self.axes, where))

    def ranks(self, axes, rank: int) -> list[int]:
        if isinstance(axes, str):
            axes = (axes,)
        axes, here = tuple(axes), self.coordinates(rank)
        cut = tuple(slice(None) if a in axes else here[a] for a in self.axes)
        return self.grid[cut].flatten().tolist()

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def bytes_between(mesh, sent, ranks_per_node):
    ranks = torch.arange(torch.Size(tuple(mesh.shape)).numel())
    node = (ranks // ranks_per_node).view(tuple(mesh.shape))
    total = 0.0
    for axis, nbytes in sent.items():
        if axis not in mesh.axes:
            continue
        after = node.roll(-1, dims=mesh.axes.index(axis))
        total += nbytes * int((node != after).sum())
    return total


def place(sizes, sent, ranks_per_node):
    def best(chosen, left):
        if not left:
            mesh = Mesh(**chosen)
            return bytes_between(mesh, sent, ranks_per_node), mesh
        found = [
            best({**chosen, axis: sizes[axis]}, [a for a in left if a != axis])
            for axis in left
        ]
        return min(found, key=lambda pair: pair[0])

    return best({}, list(sizes))[1]
