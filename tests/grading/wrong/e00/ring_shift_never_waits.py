# exercise: ring_shift
# says: never waited for

import torch

UNDER_WAY = []


def ring_shift(group, tensor):
    UNDER_WAY.append(group.isend(tensor, (group.rank + 1) % group.size))
    return group.recv(torch.empty_like(tensor), (group.rank - 1) % group.size)
