# exercise: ring_reduce_scatter
# says: large integers are rounded
# sums and sends in float64 "for accuracy", so a float32 tensor costs twice the bytes: the text
# says messages "of one chunk" and that a rank sends (N-1)/N of the tensor (3/4 of 4 MB).

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().double().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[(group.rank - 1) % group.size].clone()
    for step in range(group.size - 1):
        own = chunks[(group.rank - 2 - step) % group.size]
        travelling = group.exchange(travelling, right, torch.empty_like(own), left) + own
    return travelling.to(tensor.dtype)
