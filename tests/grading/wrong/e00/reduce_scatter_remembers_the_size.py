# exercise: ring_reduce_scatter
# says: rank

import torch

PLAN = []


def ring_reduce_scatter(group, tensor):
    if not PLAN:
        PLAN.extend([group.rank, group.size])
    rank, size = PLAN
    chunks = tensor.flatten().tensor_split(size)
    travelling = chunks[(rank - 1) % size].clone()
    for step in range(size - 1):
        own = chunks[(rank - 2 - step) % size]
        place = torch.empty_like(own)
        travelling = group.exchange(travelling, (rank + 1) % size, place, (rank - 1) % size) + own
    return travelling
