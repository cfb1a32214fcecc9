# exercise: pairwise_all_to_all
# says: your own chunk is missing

import torch


def pairwise_all_to_all(group, chunks):
    n, me = group.size, group.rank
    out = [torch.zeros_like(chunk) for chunk in chunks]
    for step in range(1, n):
        to, source = (me + step) % n, (me - step) % n
        group.exchange(chunks[to], to, out[source], source)
    return out
