import math
from itertools import permutations


def place(sizes, sent, ranks_per_node):
    best, least = None, math.inf
    for order in permutations(sizes):
        mesh = Mesh(**{axis: sizes[axis] for axis in order})
        cost = bytes_between(mesh, sent, ranks_per_node)
        if cost < least:
            best, least = mesh, cost
    return best
