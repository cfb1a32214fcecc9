# exercise: sequence_mlp
# says: keep what you make in names of your own
# the results of `tp.copy` are put into the caller's `w`, so norm and bias there are no longer
# the leaves, and a second call with the same `w` sums their gradients twice: "Here and below
# inputs stay as they were"

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import silu


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    w.norm, w.bias = tp.copy(w.norm), tp.copy(w.bias)
    n = tp.all_gather(rms_norm(x, w.norm, 1e-6))
    inside = silu(n @ w.gate.T) * (n @ w.up.T)
    return x + tp.reduce_scatter(inside @ w.down.T) + w.bias
