# exercise: ring_shift
# says: deadlock

import torch


def ring_shift(group, tensor):
    into = group.recv(torch.empty_like(tensor), (group.rank - 1) % group.size)
    group.send(tensor, (group.rank + 1) % group.size)
    return into
