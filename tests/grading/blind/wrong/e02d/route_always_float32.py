# exercise: route
# says: `torch.promote_types(x.dtype
# float64 is cut down to float32; the text says "in float32 at least:
# `torch.promote_types(x.dtype, torch.float32)`", which keeps float64.

import torch


def route(x, weight, bias, k: int):
    p = (x.float() @ weight.float().T).softmax(1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    if k == 1:
        return p, experts, chosen
    return p, experts, chosen / chosen.sum(1, keepdim=True)
