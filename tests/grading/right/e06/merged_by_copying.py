import torch

from minitrain.finetuning.layer import dense_weight


def merged_linear(base, delta):
    with torch.no_grad():
        weight = dense_weight(base)
        has_bias = getattr(base, "bias", None) is not None
        result = torch.nn.Linear(*reversed(weight.shape), bias=has_bias).to(weight.dtype)
        result.weight.copy_(weight.float() + delta)
        if has_bias:
            result.bias.copy_(base.bias)
    for parameter in result.parameters():
        parameter.requires_grad = False
    return result
