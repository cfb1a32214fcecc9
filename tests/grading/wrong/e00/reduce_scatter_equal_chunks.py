# exercise: ring_reduce_scatter
# says: size the receive buffer for the chunk that is coming

import torch


def ring_reduce_scatter(group, tensor):
    n, me = group.size, group.rank
    chunks = list(tensor.flatten().tensor_split(n))
    right, left = (me + 1) % n, (me - 1) % n

    travelling = chunks[left].clone()
    for step in range(n - 1):
        own = chunks[(me - 2 - step) % n]
        travelling = group.exchange(travelling, right, torch.empty_like(travelling), left) + own
    return travelling
