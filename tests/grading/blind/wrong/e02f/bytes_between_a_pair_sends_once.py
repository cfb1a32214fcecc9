# exercise: bytes_between
# says: that is two messages
# collects neighbours as unordered pairs, so on an axis of size 2 only one of the two messages
# counts; the text: "each sends `sent[axis]` bytes to the next, the last to the first".

def bytes_between(mesh, sent, ranks_per_node):
    number = 1
    for size in mesh.shape:
        number *= size
    total = 0.0
    for axis, nbytes in sent.items():
        edges = set()
        for rank in range(number):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            edges.add((min(rank, after), max(rank, after)))
        for one, other in edges:
            if one // ranks_per_node != other // ranks_per_node:
                total += nbytes
    return total
