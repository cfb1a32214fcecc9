# exercise: ring_all_gather
# says: keep its dtype
# the result is made as torch.empty(sum(sizes)), always float32, so int64 or float64 chunks come
# back in another dtype and rounded, but the docstring promises "All ranks' chunks".

import torch


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    out = torch.empty(sum(sizes), device=chunk.device)
    places = out.split(sizes)
    places[group.rank].copy_(chunk)
    for step in range(group.size - 1):
        send, receive = (group.rank - step) % group.size, (group.rank - step - 1) % group.size
        group.exchange(places[send], right, places[receive], left)
    return out
