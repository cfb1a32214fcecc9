# right: all six: lines as a product of digits, sorted; copies by sets; the norm grouped by number of copies; edges by coordinates; place by sorting (cost, number)
import itertools
from collections import defaultdict

import torch
from minitrain.parallel.layout import layout_of


class Mesh:
    def __init__(self, **sizes: int):  # in order: Mesh(dp=2, tp=4)
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:  # mesh["tp"]
        return self.shape[self.axes.index(axis)]

    def _number(self, digits) -> int:
        number = 0
        for digit, size in zip(digits, self.shape):
            number = number * size + digit
        return number

    def coordinates(self, rank: int) -> dict[str, int]:
        digits = []
        for size in self.shape[::-1]:
            digits.insert(0, rank % size)
            rank //= size
        return dict(zip(self.axes, digits))

    def ranks(self, axes, rank: int) -> list[int]:
        if isinstance(axes, str):
            axes = (axes,)
        choices = [
            range(self[axis]) if axis in axes else (digit,)
            for axis, digit in self.coordinates(rank).items()
        ]
        return sorted(self._number(digits) for digits in itertools.product(*choices))

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def copies(layout, mesh) -> int:
    whole = set(mesh.axes) - set(layout.split) - {"pp"}
    count = 1 + ("pp" in layout.partial)
    for axis in whole:
        count *= mesh[axis]
    return count


def gradient_norm(parameters, lines) -> torch.Tensor:
    by_copies = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
    with torch.no_grad():
        for p in parameters:
            if p.grad is None:
                continue
            own = torch.linalg.vector_norm(p.grad, dtype=torch.float64)
            by_copies[copies(layout_of(p), lines.mesh)] += own**2
    total = torch.zeros((), dtype=torch.float64)
    for count, square in by_copies.items():
        total = total + square / count
    return torch.sqrt(lines.world.all_reduce(total))


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    parameters = [*parameters]
    norm = gradient_norm(parameters, lines)
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    if factor != 1.0:
        for gradient in [p.grad for p in parameters if p.grad is not None]:
            gradient *= factor
    return norm


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    ranks = range(torch.Size(mesh.shape).numel())

    def leaves(axis, rank):
        digit = (mesh.coordinates(rank)[axis] + 1) % mesh[axis]
        after = mesh.ranks(axis, rank)[digit]
        return rank // ranks_per_node != after // ranks_per_node

    return float(sum(sent[a] * sum(leaves(a, rank) for rank in ranks) for a in sent))


def place(sizes: dict, sent: dict, ranks_per_node: int) -> Mesh:
    orders = list(itertools.permutations(sizes))
    meshes = [Mesh(**{axis: sizes[axis] for axis in order}) for order in orders]
    costs = [bytes_between(mesh, sent, ranks_per_node) for mesh in meshes]
    _, number = min(zip(costs, range(len(costs))))
    return meshes[number]
