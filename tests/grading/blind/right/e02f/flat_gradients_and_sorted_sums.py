# right: gradient_norm groups gradients by the number of copies and takes one dot product a group; clip_on_mesh hands the gradients to _foreach_mul_; Mesh finds ranks by comparing reduced coordinates; copies counts ranks by a loop over coordinates.
from itertools import product

import torch
from minitrain.parallel.layout import layout_of


class Mesh:
    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        everyone = product(*map(range, self.shape))  # the last varies fastest
        for number, place in enumerate(everyone):
            if number == rank:
                return dict(zip(self.axes, place))
        raise IndexError(f"no rank {rank} in {self}")

    def ranks(self, axes, rank: int) -> list[int]:
        named = (axes,) if isinstance(axes, str) else tuple(axes)

        def rest(place):
            return [x for axis, x in zip(self.axes, place) if axis not in named]

        places = list(product(*map(range, self.shape)))
        return [r for r, place in enumerate(places) if rest(place) == rest(places[rank])]

    def group(self, group, axes):  # this rank's line, to talk on
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def copies(layout, mesh):
    free = [a for a in mesh.axes if a != "pp" and a not in layout.split]
    holders = sum(1 for _ in product(*(range(mesh[a]) for a in free)))
    return holders + holders if "pp" in layout.partial else holders


def gradient_norm(parameters, lines):
    by_copies = {}
    for p in parameters:
        if p.grad is not None:
            flat = p.grad.detach().to(torch.float64).reshape(-1)
            by_copies.setdefault(copies(layout_of(p), lines.mesh), []).append(flat)
    square = torch.zeros((), dtype=torch.float64)
    for number, pieces in by_copies.items():
        for flat in pieces:
            square = square + torch.dot(flat, flat) / number
    return lines.world.all_reduce(square).sqrt()


def clip_on_mesh(parameters, limit, lines):
    parameters = list(parameters)
    norm = gradient_norm(iter(parameters), lines)
    factor = (limit / (norm + 1e-6)).item()
    gradients = [p.grad for p in parameters if p.grad is not None]
    if factor < 1 and gradients:
        with torch.no_grad():
            torch._foreach_mul_(gradients, factor)
    return norm
