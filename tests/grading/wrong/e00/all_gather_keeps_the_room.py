# exercise: ring_all_gather
# says: what call | had returned was changed by a later call

from functools import lru_cache

import torch


@lru_cache
def room(size, dtype):
    return torch.empty(size, dtype=dtype)


def ring_all_gather(group, chunk, sizes):
    out = room(sum(sizes), chunk.dtype)
    places = out.split(sizes)
    places[group.rank].copy_(chunk)
    for step in range(group.size - 1):
        have = places[(group.rank - step) % group.size]
        need = places[(group.rank - step - 1) % group.size]
        group.exchange(have, (group.rank + 1) % group.size, need, (group.rank - 1) % group.size)
    return out
