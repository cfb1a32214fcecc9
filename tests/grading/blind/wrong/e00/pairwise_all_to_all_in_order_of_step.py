# exercise: pairwise_all_to_all
# says: put what rank j sent at place j
# returns the chunks in the order in which they came (own, from rank - 1, from rank - 2 ...),
# but the docstring says "what each rank had for me, in order of rank".

import torch


def pairwise_all_to_all(group, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    out = [chunks[group.rank].clone()]
    for step in range(1, group.size):
        to, source = (group.rank + step) % group.size, (group.rank - step) % group.size
        out.append(group.exchange(chunks[to], to, torch.empty_like(chunks[to]), source))
    return out
