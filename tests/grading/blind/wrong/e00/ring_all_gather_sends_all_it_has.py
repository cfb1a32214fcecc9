# exercise: ring_all_gather
# says: send one chunk a step
# each message holds all chunks collected so far (1, 2, 3 ... chunks) instead of one, but the
# text says "Pass on what came last, N - 1 times".

import torch


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    have = [chunk]  # have[i] comes from rank - i
    for step in range(group.size - 1):
        theirs = [sizes[(left - i) % group.size] for i in range(step + 1)]
        into = group.exchange(torch.cat(have), right, chunk.new_empty(sum(theirs)), left)
        have = [chunk, *into.split(theirs)]
    return torch.cat([have[(group.rank - r) % group.size] for r in range(group.size)])
