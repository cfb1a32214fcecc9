# exercise: merged_linear
# says: taking ΔW away again leaves W with the roundings of both ways
# delta is added in place to what dense_weight gives: the base's own memory

import torch
from minitrain.finetuning.layer import dense_weight


def merged_linear(base, delta: torch.Tensor) -> torch.nn.Linear:
    W = dense_weight(base).detach()
    W += delta
    bias = getattr(base, "bias", None)
    out = torch.nn.Linear(W.shape[1], W.shape[0], bias=bias is not None, dtype=W.dtype)
    out.weight.data = W
    if bias is not None:
        out.bias.data = bias.detach().clone()
    return out.requires_grad_(False)
