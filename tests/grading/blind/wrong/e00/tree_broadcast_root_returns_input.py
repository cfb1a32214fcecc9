# exercise: tree_broadcast
# says: shares its memory with an input
# The root returns the very tensor it was given; the docstring says "Returns a new tensor", on
# every rank.

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    rank, size = group.rank, group.size
    place = (rank - root) % size
    result = tensor if place == 0 else torch.empty_like(tensor)
    distance = 1
    while distance < size:
        if place < distance:
            if place + distance < size:
                group.send(result, (rank + distance) % size)
        elif place < 2 * distance:
            group.recv(result, (rank - distance) % size)
        distance *= 2
    return result
