# exercise: tree_broadcast
# says: At distance 1 first
# Each place sends to its farthest partner first (4, 2, 1 in place of 1, 2, 4), so the same
# messages need 6 rounds for 8 ranks; "in ceil(log2 N) rounds" and "distance 1, 2, 4 ...".

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    rank, size = group.rank, group.size
    place = (rank - root) % size
    out = tensor.clone()
    distance = 1
    if place > 0:
        reached_by = 1 << (place.bit_length() - 1)  # highest power of two in place
        group.recv(out, (rank - reached_by) % size)
        distance = 2 * reached_by
    children = []
    while place + distance < size:
        children.append((rank + distance) % size)
        distance *= 2
    for child in reversed(children):  # the farthest one has the longest way
        group.send(out, child)
    return out
