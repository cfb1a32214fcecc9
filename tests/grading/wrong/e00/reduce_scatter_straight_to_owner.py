# exercise: ring_reduce_scatter
# says: each rank talks to one neighbour only

import torch


def ring_reduce_scatter(group, tensor):
    n, me = group.size, group.rank
    chunks = tensor.flatten().tensor_split(n)
    total = chunks[me].clone()
    for step in range(1, n):
        to, source = (me + step) % n, (me - step) % n
        total += group.exchange(chunks[to], to, torch.empty_like(total), source)
    return total
