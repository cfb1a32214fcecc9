# exercise: bytes_between
# says: close the ring
# The ring is an open chain: the edge from the last rank of a line to the first is missing.

def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    total, ranks = 0, 1
    for size in mesh.shape:
        ranks *= size
    for axis, nbytes in sent.items():
        for rank in range(ranks):
            line = mesh.ranks(axis, rank)
            if rank == line[-1]:
                continue
            after = line[line.index(rank) + 1]
            if rank // ranks_per_node != after // ranks_per_node:
                total += nbytes
    return total
