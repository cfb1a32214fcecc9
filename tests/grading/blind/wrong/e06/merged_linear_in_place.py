# exercise: merged_linear
# says: taking ΔW away again leaves W with the roundings of both ways
# adds delta to W in place: dense_weight is the weight itself for an ordinary layer, so base
# changes

import torch
from minitrain.finetuning.layer import dense_weight


def merged_linear(base, delta):
    weight = dense_weight(base)
    bias = getattr(base, "bias", None)
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    with torch.no_grad():
        weight += delta
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    return linear.requires_grad_(False)
