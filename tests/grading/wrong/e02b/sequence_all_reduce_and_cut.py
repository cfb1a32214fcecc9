# exercise: sequence_mlp
# says: an all-reduce sends as much

from torch.nn.functional import silu

from minitrain.model.norm import rms_norm


def sequence_mlp(x, w, tp):
    n = tp.all_gather(rms_norm(x, tp.copy(w.norm), 1e-6))
    inside = silu(n @ w.gate.T) * (n @ w.up.T)
    y = tp.reduce(inside @ w.down.T).chunk(tp.size, 1)[tp.rank]
    return x + y + tp.copy(w.bias)
