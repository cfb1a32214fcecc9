# exercise: ring_reduce_scatter
# says: the input changed

import torch


def ring_reduce_scatter(group, tensor):
    n, me = group.size, group.rank
    chunks = list(tensor.flatten().tensor_split(n))
    right, left = (me + 1) % n, (me - 1) % n

    for step in range(n - 1):
        going, coming = chunks[(me - 1 - step) % n], chunks[(me - 2 - step) % n]
        coming += group.exchange(going, right, torch.empty_like(coming), left)
    return chunks[me].clone()
