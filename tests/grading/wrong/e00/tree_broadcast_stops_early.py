# exercise: tree_broadcast
# says: kept its own values

import torch


def tree_broadcast(group, tensor, root=0):
    out = tensor.clone()
    place, distance = (group.rank - root) % group.size, 1
    while 2 * distance <= group.size:
        if place < distance and place + distance < group.size:
            group.send(out, (group.rank + distance) % group.size)
        elif distance <= place < 2 * distance:
            group.recv(out, (group.rank - distance) % group.size)
        distance *= 2
    return out
