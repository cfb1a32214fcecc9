# exercise: ring_all_reduce
# says: an all-reduce
# Asks the other ranks for the sizes of their chunks by one more all-gather; the docstring says
# "Made of the two functions above: what they send, nothing else".

import torch


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = chunks[(group.rank - 1) % group.size]
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
        sending = places[(group.rank - step) % group.size]
        arriving = places[(group.rank - step - 1) % group.size]
        group.exchange(sending, right, arriving, left)
    return out


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    chunk = ring_reduce_scatter(group, tensor)
    own_size = torch.tensor([chunk.numel()], device=tensor.device)
    sizes = ring_all_gather(group, own_size, [1] * group.size).tolist()
    return ring_all_gather(group, chunk, sizes).view(tensor.shape)
