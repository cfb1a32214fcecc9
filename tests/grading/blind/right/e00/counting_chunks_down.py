# right: loops count the chunk index down instead of counting steps up, the gather cuts its places with running offsets, ring_shift takes its neighbours from a rotated list of ranks.
import itertools

import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    if group.size == 1:
        return tensor.clone()
    ranks = list(range(group.size))
    to = (ranks[1:] + ranks[:1])[group.rank]
    return group.exchange(tensor, to, torch.empty_like(tensor), ranks[group.rank - 1])


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    chunks = tensor.flatten().tensor_split(group.size)
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    outgoing = chunks[left].clone()
    for c in range(group.rank - 2, group.rank - group.size - 1, -1):
        own = chunks[c % group.size]
        incoming = torch.empty_like(own)
        group.exchange(outgoing, right, incoming, left)
        outgoing = torch.add(incoming, own)
    return outgoing


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    ends = list(itertools.accumulate(sizes))
    out = chunk.new_empty(ends[-1])

    def place(rank):
        rank %= group.size
        return out[ends[rank] - sizes[rank] : ends[rank]]

    place(group.rank).copy_(chunk)
    for c in range(group.rank, group.rank - group.size + 1, -1):
        group.exchange(place(c), right, place(c - 1), left)
    return out


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    finished = ring_reduce_scatter(group, tensor)
    sizes = [len(part) for part in torch.arange(tensor.numel()).tensor_split(group.size)]
    return ring_all_gather(group, finished, sizes).view_as(tensor)
