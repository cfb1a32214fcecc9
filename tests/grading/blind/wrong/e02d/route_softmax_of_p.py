# exercise: route
# says: each beside its expert
# The weights are a second softmax over the chosen probabilities, not these divided by their
# sum.

import torch


def route(x, weight, bias, k: int):
    wide = torch.promote_types(x.dtype, torch.float32)
    p = (x.to(wide) @ weight.to(wide).T).softmax(-1)
    experts = (p + bias).topk(k, dim=-1).indices
    chosen = p.gather(1, experts)
    weights = chosen if k == 1 else chosen.softmax(-1)
    return p, experts, weights
