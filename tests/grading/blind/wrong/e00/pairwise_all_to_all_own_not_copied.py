# exercise: pairwise_all_to_all
# says: shares its memory with an input
# Puts the own chunk itself into the result, so the result shares memory with an input; "Your
# own one is copied".

import torch


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    out = [torch.empty_like(chunk) for chunk in chunks]
    out[group.rank] = chunks[group.rank]
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        group.exchange(chunks[to], to, out[source], source)
    return out
