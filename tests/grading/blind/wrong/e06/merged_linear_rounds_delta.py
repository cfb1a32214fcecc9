# exercise: merged_linear
# says: add in float32, round once
# delta is rounded to W's dtype before the sum: two roundings instead of one

import torch
from minitrain.finetuning.layer import dense_weight


def merged_linear(base, delta: torch.Tensor) -> torch.nn.Linear:
    W = dense_weight(base).detach()
    bias = getattr(base, "bias", None)
    out = torch.nn.Linear(W.shape[1], W.shape[0], bias=bias is not None, dtype=W.dtype)
    with torch.no_grad():
        out.weight.copy_(W + delta.to(W.dtype))
        if bias is not None:
            out.bias.copy_(bias)
    return out.requires_grad_(False)
