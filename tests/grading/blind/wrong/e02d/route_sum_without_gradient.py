# exercise: route
# says: the sum of the k chosen p is no constant
# the sum in the weights is detached, so their gradient is not that of "their p over the sum of
# these k", through which "gradients flow ... to p".

import torch


def route(x, weight, bias, k: int):
    dtype = torch.promote_types(x.dtype, torch.float32)
    p = (x.to(dtype) @ weight.to(dtype).T).softmax(1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    if k == 1:
        return p, experts, chosen
    return p, experts, chosen / chosen.sum(1, keepdim=True).detach()
