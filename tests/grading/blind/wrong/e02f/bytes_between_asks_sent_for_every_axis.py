# exercise: bytes_between
# says: along those nothing goes
# Goes through all axes of the mesh and takes sent[axis] of each: a KeyError where `sent` lacks
# one.

import math


def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    total = 0
    for axis in mesh.axes:
        crossing = 0
        for rank in range(math.prod(mesh.shape)):
            line = mesh.ranks(axis, rank)
            following = line[(line.index(rank) + 1) % len(line)]
            crossing += rank // ranks_per_node != following // ranks_per_node
        total += crossing * sent[axis]
    return total
