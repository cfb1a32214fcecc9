# exercise: bytes_between
# says: rank 0's lines only


def bytes_between(mesh, sent, ranks_per_node):
    total = 0
    for axis, nbytes in sent.items():
        line = mesh.ranks(axis, 0)
        for rank, after in zip(line, line[1:] + line[:1]):
            if after // ranks_per_node != rank // ranks_per_node:
                total += nbytes
    return total
