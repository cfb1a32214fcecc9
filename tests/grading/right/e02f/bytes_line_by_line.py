import math


def bytes_between(mesh, sent, ranks_per_node):
    """Each line once: its edges, from its members in order."""
    ranks, total = range(math.prod(mesh.shape)), 0.0
    for axis in sent:
        for line in {tuple(mesh.ranks(axis, rank)) for rank in ranks}:
            ring = zip(line, (*line[1:], line[0]))
            total += sent[axis] * sum(a // ranks_per_node != b // ranks_per_node for a, b in ring)
    return total
