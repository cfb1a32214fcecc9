# exercise: ring_reduce_scatter
# says: what `tensor_split` cuts are views
# What arrives is added into the chunks, which are views of `tensor`: the caller's tensor is
# changed.

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    for step in range(group.size - 1):
        sent = chunks[(group.rank - 1 - step) % group.size]
        own = chunks[(group.rank - 2 - step) % group.size]
        own += group.exchange(sent, right, torch.empty_like(own), left)
    return chunks[group.rank].clone()
