# exercise: ring_all_gather
# says: expected
# Puts the arrivals in order by rolling (rank + 1) times the own chunk's length, which is right
# only if all chunks are equally long; "`sizes[r]` is the number of elements of rank r's chunk,
# any number".

import torch


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    parts = [chunk]  # of ranks: rank, rank - 1, rank - 2, ...
    for step in range(group.size - 1):
        source = (group.rank - step - 1) % group.size
        parts.append(group.exchange(parts[-1], right, chunk.new_empty(sizes[source]), left))
    turned = torch.cat(parts[::-1])  # rank + 1, ..., rank
    return turned.roll((group.rank + 1) * chunk.numel())
