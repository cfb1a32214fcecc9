# exercise: parallel_mlp
# says: add it after the sum
# the bias is added to the part before leave, so the sum has it N times; "then the bias, which
# every rank holds whole: once"

import torch
from torch.nn.functional import silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    inside = silu(x @ w.gate.T) * (x @ w.up.T)
    return leave(inside @ w.down.T + w.bias)
