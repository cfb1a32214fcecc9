# a reader's own answers, from the notebook alone
import itertools
import math

import torch
from minitrain.parallel.layout import layout_of


class Mesh:
    """Ranks 0, 1, … on a grid with named axes."""

    def __init__(self, **sizes: int):  # in order: Mesh(dp=2, tp=4)
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:  # mesh["tp"]
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank is: {"dp": 1, "tp": 1}, axes in the mesh's order."""
        digits = []
        for size in reversed(self.shape):  # the last axis is the last digit
            rank, digit = divmod(rank, size)
            digits.append(digit)
        return dict(zip(self.axes, reversed(digits)))

    def ranks(self, axes, rank: int) -> list[int]:
        """The ranks that differ from `rank` along `axes` only."""
        free = {axes} if isinstance(axes, str) else set(axes)
        fixed = [axis for axis in self.axes if axis not in free]
        here = self.coordinates(rank)
        found = []
        for other in range(math.prod(self.shape)):
            there = self.coordinates(other)
            if all(there[axis] == here[axis] for axis in fixed):
                found.append(other)
        return found

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        size = torch.Size(self.shape).numel()
        assert size == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def copies(layout, mesh) -> int:
    """How many ranks hold the same elements of a parameter."""
    # pp is no plain factor: a layer is on one stage, a tied table on two
    holders = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split:
            holders *= mesh[axis]
    return holders


def gradient_norm(parameters, lines) -> torch.Tensor:
    """Length of the whole gradient, a float64 scalar, equal on all ranks."""
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is None:
            continue
        own = p.grad.detach().double().square().sum()
        square = square + own / copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt()


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    """Scales this rank's gradients in place; returns the norm before."""
    parameters = list(parameters)  # it is walked twice
    norm = gradient_norm(parameters, lines)
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            if p.grad is None:
                continue
            p.grad.mul_(factor)
    return norm


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    """Bytes that leave their node, of all ranks and all axes of `sent`."""
    total = 0.0
    for axis, each in sent.items():
        for rank in range(math.prod(mesh.shape)):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            if rank // ranks_per_node != after // ranks_per_node:
                total += each
    return total


def place(sizes: dict, sent: dict, ranks_per_node: int) -> Mesh:
    """The `Mesh` whose order of axes sends the least between nodes."""
    orders = itertools.permutations(sizes.items())
    meshes = [Mesh(**dict(order)) for order in orders]
    return min(meshes, key=lambda mesh: bytes_between(mesh, sent, ranks_per_node))
