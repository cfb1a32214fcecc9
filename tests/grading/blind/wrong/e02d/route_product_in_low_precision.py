# exercise: route
# says: convert x and weight before they are multiplied
# x Wᵀ is multiplied in the type of x and only then converted, so bfloat16 has lost what
# decides; "p is the softmax of `x Wᵀ`, in float32 at least"

import torch


def route(x, weight, bias, k: int):
    dtype = torch.promote_types(x.dtype, torch.float32)
    p = (x @ weight.to(x.dtype).T).to(dtype).softmax(dim=1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    weights = chosen if k == 1 else chosen / chosen.sum(1, keepdim=True)
    return p, experts, weights
