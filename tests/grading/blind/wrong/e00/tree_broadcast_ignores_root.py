# exercise: tree_broadcast
# says: count ranks from the root
# Counts places from rank 0 and never looks at `root`; "Count places from the root: place =
# (rank - root) % size".

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    rank, size = group.rank, group.size
    result = tensor.clone()
    distance = 1
    while distance < size:
        if rank < distance and rank + distance < size:
            group.send(result, rank + distance)
        elif distance <= rank < 2 * distance:
            group.recv(result, rank - distance)
        distance *= 2
    return result
