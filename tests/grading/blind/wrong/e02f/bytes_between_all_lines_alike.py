# exercise: bytes_between
# says: as if every line crossed as often as the one through rank 0
# Counts the edges of the line through rank 0 only, and multiplies by the number of lines: not
# all lines cross as often.

def bytes_between(mesh, sent: dict, ranks_per_node: int) -> float:
    total, ranks = 0, 1
    for size in mesh.shape:
        ranks *= size
    for axis, nbytes in sent.items():
        line = mesh.ranks(axis, 0)
        nodes = [r // ranks_per_node for r in line]
        crossed = sum(a != b for a, b in zip(nodes, nodes[1:] + nodes[:1]))
        total += crossed * (ranks // len(line)) * nbytes
    return total
