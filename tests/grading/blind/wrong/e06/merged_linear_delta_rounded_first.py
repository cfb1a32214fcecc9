# exercise: merged_linear
# says: and the sum once more
# rounds delta to the dtype of W before it adds: two roundings instead of one

import torch
from minitrain.finetuning.layer import dense_weight


def merged_linear(base, delta):
    weight = dense_weight(base)
    bias = getattr(base, "bias", None)
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=weight.dtype)
    linear.weight.data = weight.detach() + delta.to(weight.dtype)
    if bias is not None:
        linear.bias.data = bias.detach().clone()
    return linear.requires_grad_(False)
