# exercise: pairwise_all_to_all
# says: one chunk to each other rank, straight

import torch


def pairwise_all_to_all(group, chunks):
    n, me = group.size, group.rank
    out, bag = [None] * n, torch.stack(chunks)
    out[me] = chunks[me].clone()
    for step in range(1, n):
        bag = group.exchange(bag, (me + 1) % n, torch.empty_like(bag), (me - 1) % n)
        out[(me - step) % n] = bag[me].clone()
    return out
