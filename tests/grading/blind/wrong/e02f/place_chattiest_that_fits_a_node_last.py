# exercise: place
# says: of the others the chattiest last
# It does not count: axes longer than a node go first and of the others the chattiest last,
# which is not the least for tp=4 (10 bytes), dp=2 (9), 4 ranks a node (72 instead of 40 bytes);
# the text says "So count: of all orders, the one whose `bytes_between` is least".

def place(sizes: dict, sent: dict, ranks_per_node: int):
    by_talk = sorted(sizes, key=lambda axis: sent.get(axis, 0))
    too_long = [axis for axis in by_talk if sizes[axis] > ranks_per_node]
    fitting = [axis for axis in by_talk if sizes[axis] <= ranks_per_node]
    return Mesh(**{axis: sizes[axis] for axis in too_long + fitting})
