# exercise: ring_shift
# says: what call | had returned was changed by a later call

import torch

PLACES = {}


def ring_shift(group, tensor):
    key = (tensor.shape, tensor.dtype)
    place = PLACES.setdefault(key, torch.empty_like(tensor))
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    return group.exchange(tensor, right, place, left)
