# exercise: parallel_mlp
# says: gradient of
# says: expected one all-reduce

from torch.nn.functional import silu


def parallel_mlp(x, w, enter, leave):
    x = enter(x)
    inside = silu(x @ w.gate.T) * (x @ w.up.T)
    return leave(enter(inside) @ w.down.T) + w.bias
