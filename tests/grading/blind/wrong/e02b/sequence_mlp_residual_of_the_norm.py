# exercise: sequence_mlp
# says: the MLP was added to x's norm
# overwrites x with its norm, so the residual adds the normed x; "x plus the MLP of x's norm"

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import silu


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    x = rms_norm(x, tp.copy(w.norm), 1e-6)
    whole = tp.all_gather(x)
    inside = silu(whole @ w.gate.T) * (whole @ w.up.T)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)
