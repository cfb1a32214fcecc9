# exercise: parallel_mlp
# says: keep what you make in names of your own
# gate and up are joined once and kept on `w`, so a call after an optimizer step computes with
# the old matrices, and `w` has a new attribute: "Here and below inputs stay as they were",
# "`silu(gate)·up`" of w.gate and w.up

import torch
from torch.nn.functional import silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    if not hasattr(w, "gate_up"):
        w.gate_up = torch.cat([w.gate, w.up])  # one matmul for both
    gate, up = (enter(x) @ w.gate_up.T).chunk(2, dim=-1)
    return leave((silu(gate) * up) @ w.down.T) + w.bias
