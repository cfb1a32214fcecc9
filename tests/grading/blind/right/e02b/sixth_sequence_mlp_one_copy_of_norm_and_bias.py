# exercise: sequence_mlp
# the norm's and the bias's gradients as one message (a copy of both in one tensor), linear() in
# place of @, the residual added to the bias first
import torch
from torch.nn.functional import linear, silu

from minitrain.model.norm import rms_norm


def sequence_mlp(x: torch.Tensor, w, tp) -> torch.Tensor:
    weight, bias = tp.copy(torch.stack((w.norm, w.bias))).unbind(0)
    tokens = tp.all_gather(rms_norm(x, weight, 1e-6))
    up = linear(tokens, w.up)
    part = linear(up.mul(silu(linear(tokens, w.gate))), w.down)
    return (x + bias).add(tp.reduce_scatter(part))
