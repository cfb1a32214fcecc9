# exercise: route
# says: the bias was not used

import torch


def route(x, weight, bias, k):
    wide = torch.promote_types(x.dtype, torch.float32)
    p = (x.to(wide) @ weight.to(wide).T).softmax(dim=-1)
    experts = p.topk(k).indices
    chosen = p.gather(1, experts)
    weights = chosen / chosen.sum(1, keepdim=True) if k > 1 else chosen
    return p, experts, weights
