# exercise: sequence_mlp
# says: gradient of norm
# says: goes through `tp.copy`

from torch.nn.functional import silu

from minitrain.model.norm import rms_norm


def sequence_mlp(x, w, tp):
    n = tp.all_gather(rms_norm(x, w.norm, 1e-6))
    inside = silu(n @ w.gate.T) * (n @ w.up.T)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)
