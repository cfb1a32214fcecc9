# exercise: ring_shift
# says: that is rounded to float32
# Everything travels as float32 and is cast back, so large integers and float64 values arrive
# changed; "return what the left one sent you", i.e. "the left neighbour's tensor".

import torch


def ring_shift(group, tensor: torch.Tensor) -> torch.Tensor:
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    into = torch.empty(tensor.shape, dtype=torch.float32, device=tensor.device)
    group.exchange(tensor.to(torch.float32), right, into, left)
    return into.to(tensor.dtype, copy=True)
