# exercise: tree_broadcast
# says: the result shares its memory with an input
# The root returns the tensor that it was given, not a new one.

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    place = (group.rank - root) % group.size
    result = tensor if place == 0 else torch.empty_like(tensor)
    distance = 1
    while distance < group.size:
        if place < distance and place + distance < group.size:
            group.send(result, (group.rank + distance) % group.size)
        elif distance <= place < 2 * distance:
            group.recv(result, (group.rank - distance) % group.size)
        distance *= 2
    return result
