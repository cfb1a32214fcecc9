# exercise: route
# says: `softmax` takes off the largest one first
# a softmax by hand without the maximum subtracted gives inf / inf = NaN from logits of 89 on;
# "p is the softmax of `x Wᵀ`", which is finite for them.

import torch


def route(x, weight, bias, k: int):
    dtype = torch.promote_types(x.dtype, torch.float32)
    powers = torch.exp(x.to(dtype) @ weight.to(dtype).T)
    p = powers / powers.sum(1, keepdim=True)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    if k == 1:
        return p, experts, chosen
    return p, experts, chosen / chosen.sum(1, keepdim=True)
