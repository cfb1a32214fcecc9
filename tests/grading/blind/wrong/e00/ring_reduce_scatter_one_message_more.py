# exercise: ring_reduce_scatter
# says: a reduce-scatter
# Starts with chunk `rank` instead of `rank - 1`, ends with chunk rank + 1 and sends that on in
# an N-th message; "First send chunk `rank - 1`", "in N - 1 messages".

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[group.rank]
    for step in range(group.size - 1):
        own = chunks[(group.rank - 1 - step) % group.size]
        travelling = group.exchange(travelling, right, torch.empty_like(own), left) + own
    # this is chunk rank + 1: it belongs to the right neighbour
    mine = torch.empty_like(chunks[group.rank])
    group.exchange(travelling, right, mine, left)
    return mine
