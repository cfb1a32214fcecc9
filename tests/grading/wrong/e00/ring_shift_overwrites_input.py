# exercise: ring_shift
# says: your input was overwritten

import torch


def ring_shift(group, tensor):
    outgoing = tensor.clone()
    return group.exchange(
        outgoing, (group.rank + 1) % group.size, tensor, (group.rank - 1) % group.size
    )
