# exercise: parallel_mlp
# says: silu is of gate, not of up
# silu is taken of up and gate is multiplied plain: silu(up) * gate instead of silu(gate) * up

import torch
from torch.nn.functional import silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    h = (x @ w.gate.T) * silu(x @ w.up.T)
    return leave(h @ w.down.T) + w.bias
