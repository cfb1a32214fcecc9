# exercise: parallel_mlp
# says: that is with gelu
# gelu for silu; "`silu(gate)·up`"

import torch
from torch.nn.functional import gelu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    return leave((gelu(x @ w.gate.T) * (x @ w.up.T)) @ w.down.T) + w.bias
