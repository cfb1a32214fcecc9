# exercise: sequence_mlp
# says: normalise this rank's tokens first, then gather

from torch.nn.functional import silu

from minitrain.model.norm import rms_norm


def sequence_mlp(x, w, tp):
    n = rms_norm(tp.all_gather(x), tp.copy(w.norm), 1e-6)
    inside = silu(n @ w.gate.T) * (n @ w.up.T)
    return x + tp.reduce_scatter(inside @ w.down.T) + tp.copy(w.bias)
