# exercise: tree_broadcast
# says: that is a chain

import torch


def tree_broadcast(group, tensor, root=0):
    out = tensor.clone()
    place = (group.rank - root) % group.size
    if place > 0:
        group.recv(out, (group.rank - 1) % group.size)
    if place < group.size - 1:
        group.send(out, (group.rank + 1) % group.size)
    return out
