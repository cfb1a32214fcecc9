# exercise: parallel_mlp
# says: add it after the sum
# adds the bias to this rank's part before the sum, so it is there N times; "then the bias,
# which every rank holds whole: once"

import torch
from torch.nn.functional import linear, silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    inside = silu(linear(x, w.gate)) * linear(x, w.up)
    return leave(linear(inside, w.down, w.bias))
