# right: the layer is made on meta without random numbers, the sum is taken in a fresh float32 copy, parameters are set as new frozen ones
import torch
from minitrain.finetuning.layer import dense_weight


@torch.no_grad()
def merged_linear(base, delta):
    old = dense_weight(base)
    rows, columns = old.shape
    bias = getattr(base, "bias", None)
    layer = torch.nn.Linear(columns, rows, bias=bias is not None, device="meta")
    total = old.detach().to(torch.float32, copy=True).add_(delta)
    layer.weight = torch.nn.Parameter(total.to(old.dtype), requires_grad=False)
    if bias is not None:
        layer.bias = torch.nn.Parameter(bias.detach().clone(), requires_grad=False)
    return layer
