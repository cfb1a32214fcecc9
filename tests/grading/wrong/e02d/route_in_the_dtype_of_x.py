# exercise: route
# says: before they are multiplied

import torch


def route(x, weight, bias, k):
    wide = x.dtype
    p = (x.to(wide) @ weight.to(wide).T).softmax(dim=-1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    weights = chosen / chosen.sum(1, keepdim=True) if k > 1 else chosen
    return p, experts, weights
