# exercise: tree_broadcast
# says: that is a chain
# The tensor goes hand to hand from place to place, N - 1 rounds in a row; the docstring asks
# for "ceil(log2 N) rounds" in which all that have the tensor send.

import torch


def tree_broadcast(group, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
    place = (group.rank - root) % group.size
    result = tensor.clone()
    if place > 0:
        group.recv(result, (group.rank - 1) % group.size)
    if place < group.size - 1:
        group.send(result, (group.rank + 1) % group.size)
    return result
