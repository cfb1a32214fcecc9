# exercise: tree_broadcast
# says: it never received
# Runs floor(log2 N) rounds, so for 3, 5, 6, 7 ranks the last places never receive; the
# docstring says "ceil(log2 N) rounds" and "the root's values on every rank".

import math

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    rank, size = group.rank, group.size
    place = (rank - root) % size
    result = tensor.clone()
    for round in range(int(math.log2(size))):
        distance = 2**round
        if place < distance and place + distance < size:
            group.send(result, (rank + distance) % size)
        elif distance <= place < 2 * distance:
            group.recv(result, (rank - distance) % size)
    return result
