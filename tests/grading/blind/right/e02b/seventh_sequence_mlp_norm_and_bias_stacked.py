# exercise: sequence_mlp
# differs: norm and bias go through one copy as a stack (one message in backward), and parallel_mlp
# does the rest with the copied bias
from types import SimpleNamespace

import torch
from minitrain.model.norm import rms_norm
from torch.nn.functional import linear, silu


def parallel_mlp(x: torch.Tensor, w, enter, leave) -> torch.Tensor:
    whole = enter(x)
    features = silu(linear(whole, w.gate)).mul(linear(whole, w.up))
    return w.bias + leave(linear(features, w.down))


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    norm, bias = tp.copy(torch.stack((w.norm, w.bias))).unbind()
    own = SimpleNamespace(gate=w.gate, up=w.up, down=w.down, bias=bias)
    normed = rms_norm(x, norm, 1e-6)
    return parallel_mlp(normed, own, tp.all_gather, tp.reduce_scatter) + x
