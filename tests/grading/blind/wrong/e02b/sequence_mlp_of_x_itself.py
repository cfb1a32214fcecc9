# exercise: sequence_mlp
# says: x was not normalised
# the MLP reads x and not its norm; "x plus the MLP of x's norm"

import torch
from torch.nn.functional import silu


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    n = tp.all_gather(x)
    inside = silu(n @ w.gate.T) * (n @ w.up.T)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)
