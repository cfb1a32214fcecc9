# exercise: sequence_mlp
# says: what is whole and used on each rank's own tokens goes through `tp.copy`
# the norm's weight goes through tp.copy but the bias does not, so each rank's w.bias.grad
# covers its own tokens only ("norm and bias are whole ... their gradients are parts")

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import silu


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    n = tp.all_gather(rms_norm(x, tp.copy(w.norm), 1e-6))
    inside = silu(n @ w.gate.T) * (n @ w.up.T)
    return x + tp.reduce_scatter(inside @ w.down.T) + w.bias
