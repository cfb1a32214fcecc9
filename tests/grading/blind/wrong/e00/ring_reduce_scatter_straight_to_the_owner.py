# exercise: ring_reduce_scatter
# says: on a ring each rank talks to one neighbour only
# sends chunk j straight to rank j instead of around the ring: sum and bytes are right, but the
# docstring says "in N - 1 messages of one chunk to the right".

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    total = chunks[group.rank].clone()
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        total += group.exchange(chunks[to], to, torch.empty_like(total), source)
    return total
