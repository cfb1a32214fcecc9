# right: a table of all places made once per mesh, copies as the length of a plane, squares by dot products grouped by copies, lines counted once each as tuples, orders sorted from worst to best
from itertools import permutations, product, tee

import torch
from minitrain.parallel.layout import layout_of


class Mesh:
    """Ranks 0, 1, … on a grid with named axes."""

    def __init__(self, **sizes: int):
        self.axes, self.shape = tuple(sizes), tuple(sizes.values())
        self._places = list(product(*(range(size) for size in self.shape)))

    def __getitem__(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)]

    def coordinates(self, rank: int) -> dict[str, int]:
        return dict(zip(self.axes, self._places[rank]))

    def ranks(self, axes, rank: int) -> list[int]:
        named = (axes,) if isinstance(axes, str) else tuple(axes)
        kept = [i for i, axis in enumerate(self.axes) if axis not in named]

        def rest(place):
            return [place[i] for i in kept]

        mine = rest(self._places[rank])
        return [r for r, place in enumerate(self._places) if rest(place) == mine]

    def group(self, group, axes):
        return group.split(self.ranks(axes, group.rank)[0])

    def check(self, ranks: int):
        assert torch.Size(self.shape).numel() == ranks, f"{self} on {ranks} ranks"

    def __repr__(self):
        return f"Mesh({', '.join(f'{a}={self[a]}' for a in self.axes)})"


def copies(layout, mesh) -> int:
    free = [a for a in mesh.axes if a != "pp" and a not in layout.split]
    plane = len(mesh.ranks(free, 0))
    return 2 * plane if "pp" in layout.partial else plane


def gradient_norm(parameters, lines) -> torch.Tensor:
    by_copies = {}
    for p in parameters:
        if p.grad is not None:
            flat = p.grad.to(torch.float64).flatten()
            times = copies(layout_of(p), lines.mesh)
            by_copies[times] = by_copies.get(times, 0.0) + torch.dot(flat, flat).item()
    mine = sum(square / times for times, square in by_copies.items())
    return lines.world.all_reduce(torch.tensor(mine, dtype=torch.float64)).sqrt()


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    first, second = tee(parameters)
    norm = gradient_norm(list(first), lines)
    factor = limit / (norm + 1e-6)
    for p in second:
        if p.grad is not None and factor < 1:
            p.grad.copy_(p.grad * float(factor))
    return norm


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    everyone = range(torch.Size(mesh.shape).numel())
    leaving = []
    for axis in sent:
        for line in {tuple(mesh.ranks(axis, rank)) for rank in everyone}:
            for here, there in zip(line, (*line[1:], line[0])):
                if here // ranks_per_node != there // ranks_per_node:
                    leaving.append(sent[axis])
    return sum(leaving)


def place(sizes: dict, sent: dict, ranks_per_node: int) -> Mesh:
    meshes = [Mesh(**dict(order)) for order in permutations(sizes.items())]
    meshes.sort(key=lambda m: bytes_between(m, sent, ranks_per_node), reverse=True)
    return meshes[-1]
