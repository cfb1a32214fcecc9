# exercise: parallel_mlp
# says: read every shape after x entered
# the bias goes in through `enter`, so its gradient, which is whole on every rank, is summed N
# times ("x goes in through enter"; the bias, "which every rank holds whole: once")

import torch
from torch.nn.functional import silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    x = enter(x)
    inside = silu(x @ w.gate.T) * (x @ w.up.T)
    return leave(inside @ w.down.T) + enter(w.bias)
