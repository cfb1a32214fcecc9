# exercise: sequence_mlp
# says: normalise this rank's tokens first
# gathers x and normalizes all T tokens on every rank; the text: "Norm on T/N tokens, gather
# once"

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import silu


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    n = rms_norm(tp.all_gather(x), tp.copy(w.norm), 1e-6)
    inside = silu(n @ w.gate.T) * (n @ w.up.T)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)
