# exercise: place
# says: the chattiest axis last, also where
# The rule of thumb: axes sorted by bytes sent, the chattiest last; nothing is counted.

def place(sizes: dict, sent: dict, ranks_per_node: int):
    order = sorted(sizes, key=lambda axis: sent.get(axis, 0))
    return Mesh(**{axis: sizes[axis] for axis in order})
