# exercise: pairwise_all_to_all
# says: put what rank j sent at place j

import torch


def pairwise_all_to_all(group, chunks):
    n, me = group.size, group.rank
    out = [chunks[me].clone()]
    for step in range(1, n):
        to, source = (me + step) % n, (me - step) % n
        out.append(group.exchange(chunks[to], to, torch.empty_like(chunks[to]), source))
    return out
