# exercise: ring_shift
# says: one of each is enough
# passes to the LEFT N - 1 times, which ends with the left neighbour's tensor but in N - 1
# messages, although the text says "Pass your tensor to the right neighbour".

import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    travelling = tensor.clone()
    for _ in range(group.size - 1):
        travelling = group.exchange(travelling, left, torch.empty_like(tensor), right)
    return travelling
