# exercise: sequence_mlp
# says: the gradient of bias is None on rank 1, on others it is not | the gradient of bias is None on rank 1 and 2
# rank 0 alone adds the bias, to all tokens before the scatter, so the other ranks have no
# gradient of theirs; "bias on T/N tokens", and w.bias is whole on every rank, its gradient a
# sum over ranks

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import silu


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    n = tp.all_gather(rms_norm(x, tp.copy(w.norm), 1e-6))
    part = (silu(n @ w.gate.T) * (n @ w.up.T)) @ w.down.T
    if tp.rank == 0:
        part = part + w.bias
    return x + tp.reduce_scatter(part)
