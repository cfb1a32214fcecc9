# exercise: sequence_mlp
# says: the bias is in it twice: `parallel_mlp` adds it, too
# parallel_mlp has added the bias already; "it adds `w.bias` as it is"

import torch
from minitrain.model.norm import rms_norm


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    n = rms_norm(x, tp.copy(w.norm), 1e-6)
    return x + parallel_mlp(n, w, tp.all_gather, tp.reduce_scatter) + tp.copy(w.bias)
