# exercise: sequence_mlp
# says: An all-reduce sends as much as both
# all-reduces the output of all tokens and keeps its own slice where the text says "scatter"
# (reduce-scatter after the block); it sends twice as much, and backward sees only this rank's
# tokens

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import silu


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    n = tp.all_gather(rms_norm(x, tp.copy(w.norm), 1e-6))
    inside = silu(n @ w.gate.T) * (n @ w.up.T)
    out = tp.reduce(inside @ w.down.T)
    own = out.chunk(tp.size, dim=1)[tp.rank]
    return x + own + tp.copy(w.bias)
