# exercise: parallel_mlp
# says: Let x enter first

from torch.nn.functional import silu


def parallel_mlp(x, w, enter, leave):
    inside = silu(x @ w.gate.T) * (x @ w.up.T)
    return leave(inside @ w.down.T) + w.bias
