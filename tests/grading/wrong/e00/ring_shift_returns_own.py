# exercise: ring_shift
# says: return what was received, not what was sent

import torch


def ring_shift(group, tensor):
    into = torch.empty_like(tensor)
    group.exchange(tensor, (group.rank + 1) % group.size, into, (group.rank - 1) % group.size)
    return tensor
