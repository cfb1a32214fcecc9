# exercise: parallel_mlp
# says: and all matrices read that one copy
# enter is called for gate and again for up: two all-reduces in backward instead of one.

import torch
from torch.nn.functional import silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    gate = silu(enter(x) @ w.gate.T)
    up = enter(x) @ w.up.T
    return leave((gate * up) @ w.down.T) + w.bias
