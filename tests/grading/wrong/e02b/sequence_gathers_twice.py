# exercise: sequence_mlp
# says: Gather the norm's output once

from torch.nn.functional import silu

from minitrain.model.norm import rms_norm


def sequence_mlp(x, w, tp):
    n = rms_norm(x, tp.copy(w.norm), 1e-6)
    inside = silu(tp.all_gather(n) @ w.gate.T) * (tp.all_gather(n) @ w.up.T)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)
