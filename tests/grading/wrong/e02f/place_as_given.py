# exercise: place
# says: order that was given


def place(sizes, sent, ranks_per_node):
    return Mesh(**sizes)
