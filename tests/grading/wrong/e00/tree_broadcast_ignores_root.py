# exercise: tree_broadcast
# says: those are rank 0's values | deadlock

import torch


def tree_broadcast(group, tensor, root=0):
    out = tensor.clone()
    distance = 1
    while distance < group.size:
        if group.rank < distance and group.rank + distance < group.size:
            group.send(out, group.rank + distance)
        elif distance <= group.rank < 2 * distance:
            group.recv(out, group.rank - distance)
        distance *= 2
    return out
