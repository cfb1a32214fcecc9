# exercise: route
# says: `torch.promote_types(x.dtype
# everything is turned into float32, also what came in float64; "in float32 at least:
# `torch.promote_types(x.dtype, torch.float32)`"

import torch


def route(x, weight, bias, k: int):
    p = (x.float() @ weight.float().T).softmax(dim=1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    weights = chosen if k == 1 else chosen / chosen.sum(1, keepdim=True)
    return p, experts, weights
