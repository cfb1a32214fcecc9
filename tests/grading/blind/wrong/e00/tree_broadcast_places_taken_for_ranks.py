# exercise: tree_broadcast
# says: wait for a *place*: it was taken for a rank
# Places are sent to as if they were ranks (the root is not added back): right for root 0 only.

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    place = (group.rank - root) % group.size
    result = tensor.clone()
    distance = 1
    while distance < group.size:
        if place < distance:
            if place + distance < group.size:
                group.send(result, place + distance)
        elif place < 2 * distance:
            group.recv(result, place - distance)
        distance *= 2
    return result
