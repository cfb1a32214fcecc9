# exercise: sequence_mlp
# says: it is added to x itself
# the residual stream is lost: the MLP's output is added to the normed x, not to x

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import silu


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    x = rms_norm(x, tp.copy(w.norm), 1e-6)
    n = tp.all_gather(x)
    h = silu(n @ w.gate.T) * (n @ w.up.T)
    return x + tp.reduce_scatter(h @ w.down.T) + tp.copy(w.bias)
