# exercise: ring_reduce_scatter
# says: on a ring each rank talks to one neighbour only
# Sends each chunk straight to the rank that owns it; the docstring asks for "N - 1 messages of
# one chunk to the right", each sum passed on along the ring.

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    total = chunks[group.rank].clone()
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        total += group.exchange(chunks[to], to, torch.empty_like(total), source)
    return total
