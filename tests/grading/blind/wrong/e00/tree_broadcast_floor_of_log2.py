# exercise: tree_broadcast
# says: it never received
# runs floor(log2 N) rounds, so with 3, 5 or 6 ranks the last places never receive and return
# their own values, but the docstring says "on every rank, in ceil(log2 N) rounds".

import math

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    place = (group.rank - root) % group.size
    out = tensor.clone()
    distance = 1
    for _ in range(int(math.log2(group.size))):
        if place < distance:
            if place + distance < group.size:
                group.send(out, (group.rank + distance) % group.size)
        elif place < 2 * distance:
            group.recv(out, (group.rank - distance) % group.size)
        distance *= 2
    return out
