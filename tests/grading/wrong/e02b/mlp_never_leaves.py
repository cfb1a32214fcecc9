# exercise: parallel_mlp
# says: that is this rank's part: it leaves through `leave`

from torch.nn.functional import silu


def parallel_mlp(x, w, enter, leave):
    x = enter(x)
    inside = silu(x @ w.gate.T) * (x @ w.up.T)
    return inside @ w.down.T + w.bias
