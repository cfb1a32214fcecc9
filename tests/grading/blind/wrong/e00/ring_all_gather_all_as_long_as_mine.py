# exercise: ring_all_gather
# says: like the chunk that is coming, `sizes` has its length
# Every chunk is received into a tensor as long as one's own: right only where all sizes are
# equal.

import torch


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    chunks = [None] * group.size
    chunks[group.rank] = chunk
    for step in range(group.size - 1):
        sent = chunks[(group.rank - step) % group.size]
        source = (group.rank - 1 - step) % group.size
        chunks[source] = group.exchange(sent, right, torch.empty_like(chunk), left)
    return torch.cat(chunks)
