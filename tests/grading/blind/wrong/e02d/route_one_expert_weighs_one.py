# exercise: route
# says: with one expert the weight is p
# weights are divided by their sum for k = 1 too, which gives 1 and no gradient; "for k = 1 p
# itself"

import torch


def route(x, weight, bias, k: int):
    dtype = torch.promote_types(x.dtype, torch.float32)
    p = (x.to(dtype) @ weight.to(dtype).T).softmax(dim=1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    return p, experts, chosen / chosen.sum(1, keepdim=True)
