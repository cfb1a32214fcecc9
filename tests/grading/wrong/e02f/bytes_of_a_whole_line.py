# exercise: bytes_between
# says: edges inside them too

import math


def bytes_between(mesh, sent, ranks_per_node):
    total = 0
    for axis, nbytes in sent.items():
        for rank in range(math.prod(mesh.shape)):
            line = mesh.ranks(axis, rank)
            if len({other // ranks_per_node for other in line}) > 1:
                total += nbytes
    return total
