# exercise: place
# says: are possible


def place(sizes, sent, ranks_per_node):
    order = sorted(sizes, key=lambda axis: (sizes[axis] <= ranks_per_node, sent[axis]))
    return Mesh(**{axis: sizes[axis] for axis in order})
