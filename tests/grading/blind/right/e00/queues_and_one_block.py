# right: the chunks of reduce-scatter are queued in the order in which they pass; all-gather receives by narrow into one block; all-to-all receives into one block and returns its slices
from itertools import accumulate

import torch


class Ring:
    def __init__(self, group):
        self.group = group
        self.right = (group.rank + 1) % group.size
        self.left = (group.rank - 1) % group.size

    def turn(self, out, into):
        self.group.exchange(out, self.right, into, self.left)
        return into


def ring_reduce_scatter(group, tensor: torch.Tensor) -> torch.Tensor:
    ring = Ring(group)
    chunks = torch.tensor_split(tensor.flatten(), group.size)
    first, *later = [chunks[(group.rank - 1 - s) % group.size] for s in range(group.size)]
    total = first
    for own in later:
        total = own.add(ring.turn(total, torch.empty_like(own)))
    return total


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    ring, starts = Ring(group), [0, *accumulate(sizes)]
    whole = chunk.new_empty(starts[-1])

    def place(r):
        r = r % group.size
        return whole.narrow(0, starts[r], sizes[r])

    place(group.rank)[:] = chunk
    for r in range(group.rank, group.rank - group.size + 1, -1):
        ring.turn(place(r), place(r - 1))
    return whole


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    cuts = torch.empty(tensor.numel(), device="meta").tensor_split(group.size)
    part = ring_reduce_scatter(group, tensor)
    return ring_all_gather(group, part, [len(cut) for cut in cuts]).view(tensor.shape)


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    block = torch.empty_like(chunks[0]).new_empty((group.size, *chunks[0].shape))
    got = list(block.unbind(0))
    got[group.rank].copy_(chunks[group.rank])
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        group.exchange(chunks[to], to, got[source], source)
    return got
