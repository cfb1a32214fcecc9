# exercise: parallel_mlp
# says: read every shape after x entered
# B and T are taken from x before enter, so an enter that gathers tokens breaks it; "with which
# x and the output have fewer tokens than what is in between"

import torch
from torch.nn.functional import silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    B, T, D = x.shape
    flat = enter(x).reshape(B * T, D)
    inside = silu(flat @ w.gate.T) * (flat @ w.up.T)
    part = (inside @ w.down.T).reshape(B, T, D)
    return leave(part) + w.bias
