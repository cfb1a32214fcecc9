# exercise: tree_broadcast
# says: it never received
# The rounds are written out as 1, 2, 4, so with more than 8 ranks places 8 and up never get the
# root's values; "The root's values on every rank, in ceil(log2 N) rounds".

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    place = (group.rank - root) % group.size
    out = tensor.clone()
    for distance in (1, 2, 4):
        if place < distance:
            if place + distance < group.size:
                group.send(out, (group.rank + distance) % group.size)
        elif place < 2 * distance:
            group.recv(out, (group.rank - distance) % group.size)
    return out
