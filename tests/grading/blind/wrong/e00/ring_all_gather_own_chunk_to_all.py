# exercise: ring_all_gather
# says: on a ring each rank talks to one neighbour only
# Sends its own chunk to every other rank itself instead of passing on what came last; "Pass on
# what came last, N - 1 times", "N - 1 messages of one chunk to the right".

import torch


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    out = chunk.new_empty(sum(sizes))
    places = out.split(sizes)
    places[group.rank].copy_(chunk)
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        group.exchange(chunk, to, places[source], source)
    return out
