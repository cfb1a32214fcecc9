# exercise: route
# says: divide by the sum of the k chosen p

import torch


def route(x, weight, bias, k):
    wide = torch.promote_types(x.dtype, torch.float32)
    p = (x.to(wide) @ weight.to(wide).T).softmax(dim=-1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    weights = chosen
    return p, experts, weights
