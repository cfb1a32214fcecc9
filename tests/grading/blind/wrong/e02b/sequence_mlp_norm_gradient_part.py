# exercise: sequence_mlp
# says: what is whole and used on each rank's own tokens goes through `tp.copy`
# w.norm is used as it is, so its gradient is only of this rank's tokens; "now each rank uses
# them on its own tokens: their gradients are parts"

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import silu


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    n = tp.all_gather(rms_norm(x, w.norm, 1e-6))
    inside = silu(n @ w.gate.T) * (n @ w.up.T)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)
