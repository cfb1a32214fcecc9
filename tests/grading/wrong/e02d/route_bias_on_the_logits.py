# exercise: route
# says: the bias was added to the logits | choose by p + bias

import torch


def route(x, weight, bias, k):
    wide = torch.promote_types(x.dtype, torch.float32)
    p = (x.to(wide) @ weight.to(wide).T).softmax(dim=-1)
    logits = x.to(wide) @ weight.to(wide).T
    experts = (logits + bias).topk(k).indices
    chosen = p.gather(1, experts)
    weights = chosen / chosen.sum(1, keepdim=True) if k > 1 else chosen
    return p, experts, weights
