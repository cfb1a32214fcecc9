# exercise: route
# says: experts with a bias
# chooses by logits + bias, which is the same for a bias of zeros but not otherwise; the text:
# "The k largest of p + bias are chosen", and p is the softmax.

import torch


def route(x, weight, bias, k: int):
    dtype = torch.promote_types(x.dtype, torch.float32)
    logits = x.to(dtype) @ weight.to(dtype).T
    p = logits.softmax(dim=-1)
    experts = (logits.detach() + bias).topk(k, dim=-1).indices
    weights = p.gather(1, experts)
    if k > 1:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return p, experts, weights
