# exercise: ring_all_gather
# says: keep its dtype
# The result is made in the default dtype, so chunks of float64 or integers come back as
# float32; the docstring says "All ranks' chunks in order of rank", not a conversion of them.

import torch


def ring_all_gather(group, chunk: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    out = torch.empty(sum(sizes))
    places = out.split(sizes)
    places[group.rank].copy_(chunk)
    for step in range(group.size - 1):
        sending = places[(group.rank - step) % group.size]
        arriving = places[(group.rank - step - 1) % group.size]
        group.exchange(sending, right, arriving, left)
    return out
