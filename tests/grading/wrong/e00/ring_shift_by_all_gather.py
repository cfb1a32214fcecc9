# exercise: ring_shift
# says: ready-made all_gather

import torch


def ring_shift(group, tensor):
    flat = torch.empty(group.size * tensor.numel(), dtype=tensor.dtype)
    group.all_gather(flat, tensor.flatten())
    return flat.view(group.size, *tensor.shape)[(group.rank - 1) % group.size].clone()
