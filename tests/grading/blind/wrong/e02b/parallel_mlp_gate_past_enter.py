# exercise: parallel_mlp
# says: the ranks' gradients of it differ
# only up reads the x that came through enter, gate reads x itself, so gate's part of x's
# gradient is never summed; "x goes in through `enter`"

import torch
from torch.nn.functional import silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    whole = enter(x)
    gate = x @ w.gate.T
    if gate.shape[1] != whole.shape[1]:  # tokens were gathered
        gate = whole @ w.gate.T
    up = whole @ w.up.T
    return leave((silu(gate) * up) @ w.down.T) + w.bias
