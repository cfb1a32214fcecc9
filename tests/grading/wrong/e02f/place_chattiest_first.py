# exercise: place
# says: no order sends more


def place(sizes, sent, ranks_per_node):
    return Mesh(**{axis: sizes[axis] for axis in sorted(sizes, key=sent.get, reverse=True)})
