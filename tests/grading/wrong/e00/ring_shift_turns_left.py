# exercise: ring_shift
# says: the right neighbour: the ring turns the other way

import torch


def ring_shift(group, tensor):
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    return group.exchange(tensor, left, torch.empty_like(tensor), right)
