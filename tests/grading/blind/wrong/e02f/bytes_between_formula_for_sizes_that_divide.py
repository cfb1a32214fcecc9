# exercise: bytes_between
# says: with 1 byte along
# a closed form from strides, right only where lines and nodes divide each other; with 3 ranks a
# line and 4 a node the line 3, 4, 5 leaves its node and counts as inside; the text: ranks share
# a node "if `r // ranks_per_node == s // ranks_per_node`", "Count edges".

def bytes_between(mesh, sent, ranks_per_node):
    number = 1
    for size in mesh.shape:
        number *= size
    total = 0.0
    for axis, nbytes in sent.items():
        if axis not in mesh.axes:
            continue
        stride = 1  # from a rank to the next along this axis
        for other in mesh.axes[mesh.axes.index(axis) + 1 :]:
            stride *= mesh[other]
        if mesh[axis] * stride <= ranks_per_node:
            continue  # the whole line is in one node
        if mesh[axis] == 1:
            continue
        leaving = number  # each step leaves the node
        if stride < ranks_per_node:
            leaving = number * stride / ranks_per_node  # the last of a line in each node
        total += leaving * nbytes
    return total
