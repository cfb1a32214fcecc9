# exercise: bytes_between
# says: KeyError

import math


def bytes_between(mesh, sent, ranks_per_node):
    total = 0
    for axis in mesh.axes:
        for rank in range(math.prod(mesh.shape)):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            if after // ranks_per_node != rank // ranks_per_node:
                total += sent[axis]
    return total
