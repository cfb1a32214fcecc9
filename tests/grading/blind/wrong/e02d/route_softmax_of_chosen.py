# exercise: route
# says: with one expert the weight is p
# weights as a softmax over the chosen logits: equal for k > 1, but for k = 1 it is 1 and not p

import torch


def route(x, weight, bias, k):
    dtype = torch.promote_types(x.dtype, torch.float32)
    logits = x.to(dtype) @ weight.to(dtype).T
    p = logits.softmax(-1)
    experts = (p + bias).topk(k, dim=-1).indices
    return p, experts, logits.gather(-1, experts).softmax(-1)
