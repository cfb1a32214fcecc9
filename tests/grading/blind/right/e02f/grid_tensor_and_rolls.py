# right: strides from the first axis on, a tensor of rank numbers indexed for lines and rolled for edges, vector_norm in float64, the best order by a loop that keeps the last of equals
import math
from itertools import permutations

import torch
from minitrain.parallel.layout import layout_of


class Mesh:
    """Ranks 0, 1, … on a grid with named axes."""

    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        stride, where = math.prod(self.shape), {}
        for axis, size in zip(self.axes, self.shape):
            stride //= size
            where[axis] = rank // stride % size
        return where

    def ranks(self, axes, rank: int) -> list[int]:
        named = {axes} if isinstance(axes, str) else set(axes)
        grid = torch.arange(math.prod(self.shape)).view(self.shape)
        where = self.coordinates(rank)
        index = tuple(slice(None) if a in named else where[a] for a in self.axes)
        return grid[index].flatten().tolist()

    def group(self, group, axes):
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def copies(layout, mesh) -> int:
    stages = 2 if "pp" in layout.partial else 1
    left_out = layout.split | {"pp"}
    return stages * math.prod(mesh[axis] for axis in mesh.axes if axis not in left_out)


def gradient_norm(parameters, lines) -> torch.Tensor:
    shares = [torch.zeros((), dtype=torch.float64)]
    for p in parameters:
        if p.grad is None:
            continue
        length = torch.linalg.vector_norm(p.grad, dtype=torch.float64)
        shares.append(length**2 / copies(layout_of(p), lines.mesh))
    return torch.sqrt(lines.world.all_reduce(torch.stack(shares).sum()))


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    held = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(held, lines)
    factor = limit / (norm.item() + 1e-6)
    if not factor < 1:
        return norm
    for p in held:
        p.grad.mul_(factor)
    return norm


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    grid = torch.arange(math.prod(mesh.shape)).view(mesh.shape)
    total = 0.0
    for axis, nbytes in sent.items():
        after = grid.roll(-1, dims=mesh.axes.index(axis))
        total += nbytes * int((grid // ranks_per_node != after // ranks_per_node).sum())
    return total


def place(sizes: dict, sent: dict, ranks_per_node: int) -> Mesh:
    best, least = None, math.inf
    for names in permutations(sizes):
        mesh = Mesh(**{name: sizes[name] for name in names})
        cost = bytes_between(mesh, sent, ranks_per_node)
        if cost <= least:
            best, least = mesh, cost
    return best
