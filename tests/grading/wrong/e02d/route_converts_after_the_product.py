# exercise: route
# says: convert x and weight before they are multiplied | in which experts tie

import torch


def route(x, weight, bias, k):
    wide = torch.promote_types(x.dtype, torch.float32)
    p = (x @ weight.T).to(wide).softmax(dim=-1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    weights = chosen / chosen.sum(1, keepdim=True) if k > 1 else chosen
    return p, experts, weights
