# exercise: merged_linear
# says: while it is merged an adapter does not learn
# the merged layer is not frozen: weight and bias ask for gradients

import torch
from minitrain.finetuning.layer import dense_weight


def merged_linear(base, delta):
    weight = dense_weight(base).detach()
    bias = getattr(base, "bias", None)
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    linear.weight.data = (weight.float() + delta).to(weight.dtype)
    if bias is not None:
        linear.bias.data = bias.detach().clone()
    return linear
