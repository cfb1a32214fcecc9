# exercise: bytes_between
# says: bytes between nodes
# Walks each line from its first rank to its last and stops there: the edge from the last rank
# back to the first is left out.

def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    ranks, total = 1, 0.0
    for size in mesh.shape:
        ranks *= size
    for axis, nbytes in sent.items():
        for rank in range(ranks):
            line = mesh.ranks(axis, rank)
            if rank == line[-1]:
                continue
            following = line[line.index(rank) + 1]
            if rank // ranks_per_node != following // ranks_per_node:
                total += nbytes
    return total
