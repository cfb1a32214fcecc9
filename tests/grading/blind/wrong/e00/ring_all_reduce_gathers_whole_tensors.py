# exercise: ring_all_reduce
# says: you sent the whole tensor
# gathers every rank's whole tensor and adds them up locally, (N - 1)·S bytes instead of
# 2(N-1)/N·S, but the docstring says "Made of the two functions above": reduce-scatter, then
# all-gather.

import torch


# the two functions above, as they were graded (right)
def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[(group.rank - 1) % group.size].clone()
    for step in range(group.size - 1):
        own = chunks[(group.rank - 2 - step) % group.size]
        travelling = group.exchange(travelling, right, torch.empty_like(own), left) + own
    return travelling


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    out = chunk.new_empty(sum(sizes))
    places = out.split(sizes)
    places[group.rank].copy_(chunk)
    for step in range(group.size - 1):
        send, receive = (group.rank - step) % group.size, (group.rank - step - 1) % group.size
        group.exchange(places[send], right, places[receive], left)
    return out


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.flatten()
    everything = ring_all_gather(group, flat, [flat.numel()] * group.size)
    table = everything.view(group.size, flat.numel())
    return table.sum(dim=0, dtype=tensor.dtype).view(tensor.shape)
