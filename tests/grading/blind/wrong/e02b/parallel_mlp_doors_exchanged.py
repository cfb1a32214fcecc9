# exercise: parallel_mlp
# says: x was summed over ranks, and the parts were not
# enter and leave are exchanged: x is summed over ranks, which all have it whole, and the parts
# never are

import torch
from torch.nn.functional import silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = leave(x)
    inside = silu(x @ w.gate.T) * (x @ w.up.T)
    return enter(inside @ w.down.T) + w.bias
