# exercise: parallel_mlp
# says: once a rank: add it after the sum

from torch.nn.functional import silu


def parallel_mlp(x, w, enter, leave):
    x = enter(x)
    inside = silu(x @ w.gate.T) * (x @ w.up.T)
    return leave(inside @ w.down.T + w.bias)
