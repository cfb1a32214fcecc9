# exercise: parallel_mlp
# says: and all matrices read that one copy
# x enters once for gate and once for up, so backward sums (and sends) twice; section 2 says
# "One sum, and nothing sent in between", and a layer's MLP has "one sum forward and one
# backward"

import torch
from torch.nn.functional import silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    gate = enter(x) @ w.gate.T
    up = enter(x) @ w.up.T
    return leave((silu(gate) * up) @ w.down.T) + w.bias
