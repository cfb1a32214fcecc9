# exercise: bytes_between
# says: whole line

import math


def bytes_between(mesh, sent, ranks_per_node):
    total = 0
    for axis, nbytes in sent.items():
        for rank in range(math.prod(mesh.shape)):
            for other in mesh.ranks(axis, rank):
                if other // ranks_per_node != rank // ranks_per_node:
                    total += nbytes
    return total
