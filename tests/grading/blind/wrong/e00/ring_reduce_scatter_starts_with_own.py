# exercise: ring_reduce_scatter
# says: so that the last to arrive is your own
# The first chunk that is sent is `rank`, not `rank - 1`: rank r ends with chunk r + 1 of the
# sum.

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    partial = chunks[group.rank]
    for step in range(group.size - 1):
        mine = chunks[(group.rank - 1 - step) % group.size]
        partial = mine + group.exchange(partial, right, torch.empty_like(mine), left)
    return partial
