# exercise: route
# says: p / p is 1 and teaches the router nothing

import torch


def route(x, weight, bias, k):
    wide = torch.promote_types(x.dtype, torch.float32)
    p = (x.to(wide) @ weight.to(wide).T).softmax(dim=-1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    weights = chosen / chosen.sum(1, keepdim=True)
    return p, experts, weights
