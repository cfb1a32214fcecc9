# exercise: route
# says: convert x and weight before they are multiplied
# the matmul is done in the activations' dtype (bfloat16) and only the softmax in float32

import torch


def route(x, weight, bias, k):
    logits = x @ weight.T
    p = logits.to(torch.promote_types(x.dtype, torch.float32)).softmax(-1)
    experts = (p + bias).topk(k, dim=-1).indices
    weights = p.gather(-1, experts)
    if k > 1:
        weights = weights / weights.sum(-1, keepdim=True)
    return p, experts, weights
