# exercise: ring_shift
# says: make the place for what arrives like the tensor that is coming
# The tensor that receives is always float32 (torch.empty(shape)): bytes of other dtypes are
# read as floats, or do not fit.

import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    right = (group.rank + 1) % group.size
    left = (group.rank - 1) % group.size
    into = torch.empty(tensor.shape, device=tensor.device)
    return group.exchange(tensor, right, into, left)
