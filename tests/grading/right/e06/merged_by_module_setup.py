import torch
from torch import nn

from minitrain.finetuning.layer import dense_weight


def merged_linear(base, delta):
    """A layer on the meta device is given its tensors."""
    old = dense_weight(base)
    new = torch.add(old.to(torch.float32), delta).to(dtype=old.dtype)
    layer = nn.Linear(new.shape[1], new.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(new, requires_grad=False)
    if getattr(base, "bias", None) is not None:
        layer.bias = nn.Parameter(base.bias.detach(), requires_grad=False)
    return layer
