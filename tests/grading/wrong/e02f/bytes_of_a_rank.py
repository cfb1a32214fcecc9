# exercise: bytes_between
# says: mean of a rank

import math


def bytes_between(mesh, sent, ranks_per_node):
    total = 0
    for axis, nbytes in sent.items():
        for rank in range(math.prod(mesh.shape)):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            if after // ranks_per_node != rank // ranks_per_node:
                total += nbytes
    return total / math.prod(mesh.shape)
