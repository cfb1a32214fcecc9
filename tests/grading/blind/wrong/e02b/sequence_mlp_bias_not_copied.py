# exercise: sequence_mlp
# says: what is whole and used on each rank's own tokens goes through `tp.copy`
# parallel_mlp is called with w as it is: the bias works on T/N tokens, its gradient is never
# summed (the norm's is).

import torch
from minitrain.model.norm import rms_norm


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    n = rms_norm(x, tp.copy(w.norm), 1e-6)
    return x + parallel_mlp(n, w, tp.all_gather, tp.reduce_scatter)
