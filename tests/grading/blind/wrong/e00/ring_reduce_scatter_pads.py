# exercise: ring_reduce_scatter
# says: `tensor_split` cuts
# Pads to a multiple of N and cuts equal chunks, so where N does not divide n the chunk borders
# are not those of `tensor_split` ("`tensor_split` cuts, whatever the size"; "for any n"): 10
# elements on 4 ranks give 3, 3, 3, 1 and not 3, 3, 2, 2.

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    flat, n = tensor.flatten(), tensor.numel()
    each = -(-n // group.size)
    padded = torch.nn.functional.pad(flat, (0, each * group.size - n))
    chunks = padded.view(group.size, each)
    travelling = chunks[(group.rank - 1) % group.size]
    for step in range(group.size - 1):
        own = chunks[(group.rank - 2 - step) % group.size]
        into = torch.empty_like(own)
        travelling = group.exchange(travelling, right, into, left) + own
    return travelling[: max(0, n - group.rank * each)]
