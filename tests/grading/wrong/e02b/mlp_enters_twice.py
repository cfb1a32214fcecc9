# exercise: parallel_mlp
# says: x enters once, and all matrices read that one copy

from torch.nn.functional import silu


def parallel_mlp(x, w, enter, leave):
    inside = silu(enter(x) @ w.gate.T) * (enter(x) @ w.up.T)
    return leave(inside @ w.down.T) + w.bias
