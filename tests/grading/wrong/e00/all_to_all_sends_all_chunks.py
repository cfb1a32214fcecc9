# exercise: pairwise_all_to_all
# says: each peer gets its own chunk only

import torch


def pairwise_all_to_all(group, chunks):
    n, me = group.size, group.rank
    mine, out = torch.stack(chunks), [None] * n
    out[me] = chunks[me].clone()
    for step in range(1, n):
        to, source = (me + step) % n, (me - step) % n
        out[source] = group.exchange(mine, to, torch.empty_like(mine), source)[me].clone()
    return out
