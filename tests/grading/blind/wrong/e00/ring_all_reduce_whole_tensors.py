# exercise: ring_all_reduce
# says: expected
# Passes whole tensors around the ring and adds them as they come: N/2 times the bytes, and each
# rank adds in another order, so not "the same bits on every rank" and not "made of the two
# functions above".

import torch


def ring_all_reduce(group, tensor: torch.Tensor) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    total, travelling = tensor.clone(), tensor
    for _ in range(group.size - 1):
        travelling = group.exchange(travelling, right, torch.empty_like(tensor), left)
        total += travelling
    return total
