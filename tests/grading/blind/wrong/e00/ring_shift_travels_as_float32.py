# exercise: ring_shift
# says: send the tensor as it is
# every tensor travels as float32 and is cast back, so large integers and float64 values arrive
# rounded, but the docstring promises "The left neighbour's tensor".

import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    into = torch.empty_like(tensor, dtype=torch.float32)
    group.exchange(tensor.to(torch.float32), right, into, left)
    return into.to(tensor.dtype)
