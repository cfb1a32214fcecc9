# exercise: parallel_mlp
# says: silu is of gate

from torch.nn.functional import silu


def parallel_mlp(x, w, enter, leave):
    x = enter(x)
    return leave((x @ w.gate.T * silu(x @ w.up.T)) @ w.down.T) + w.bias
