# exercise: ring_all_gather
# says: make the place for what arrives like the chunk that is coming
# takes all chunks to be as large as its own and never reads `sizes`, although "`sizes[r]` is
# the number of elements of rank r's chunk" and chunks may differ.

import torch


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    places = chunk.new_empty(group.size, chunk.numel())
    places[group.rank].copy_(chunk)
    for step in range(group.size - 1):
        send, receive = (group.rank - step) % group.size, (group.rank - step - 1) % group.size
        group.exchange(places[send], right, places[receive], left)
    return places.flatten()
