# exercise: ring_reduce_scatter
# says: only two ranks' parts | your own part | that is

import torch


def ring_reduce_scatter(group, tensor):
    n, me = group.size, group.rank
    chunks = list(tensor.flatten().tensor_split(n))
    right, left = (me + 1) % n, (me - 1) % n

    result = chunks[me].clone()
    for step in range(n - 1):
        own = chunks[(me - 2 - step) % n]
        arrived = group.exchange(chunks[(me - 1 - step) % n], right, torch.empty_like(own), left)
        if step == n - 2:
            result = result + arrived
    return result
