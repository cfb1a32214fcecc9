# exercise: route
# says: convert x and weight before they are multiplied
# The logits are computed in x's type, and only the softmax in float32: the choice is made of
# rounded logits.

import torch


def route(x, weight, bias, k: int):
    wide = torch.promote_types(x.dtype, torch.float32)
    logits = x @ weight.to(x.dtype).T
    p = logits.softmax(-1, dtype=wide)
    experts = (p + bias).topk(k, dim=-1).indices
    weights = p.gather(1, experts)
    if k > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    return p, experts, weights
