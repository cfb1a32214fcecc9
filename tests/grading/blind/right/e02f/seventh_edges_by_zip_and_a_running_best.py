# exercise: bytes_between
# how it differs: each line is walked once, from its lowest rank, with its edges by zip with the
# rotated line; x_a is counted, then multiplied. place walks the orders by hand and keeps the best.
from itertools import permutations
from math import prod


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    def crossings(axis):
        lines = {tuple(mesh.ranks(axis, rank)) for rank in range(prod(mesh.shape))}
        edges = (edge for line in lines for edge in zip(line, line[1:] + line[:1]))
        return sum(a // ranks_per_node != b // ranks_per_node for a, b in edges)

    return sum(crossings(axis) * sent[axis] for axis in mesh.axes if axis in sent)


def place(sizes: dict, sent: dict, ranks_per_node: int) -> Mesh:
    best, least = None, float("inf")
    for names in permutations(sizes):
        mesh = Mesh(**{name: sizes[name] for name in names})
        leaving = bytes_between(mesh, sent, ranks_per_node)
        if best is None or leaving < least:
            best, least = mesh, leaving
    return best
