# exercise: route
# says: the right weights, beside other experts
# the chosen experts are sorted by number, their weights stay in order of size: "their weights"
# are those of the experts beside them
import torch


def route(x, weight, bias, k: int):
    dtype = torch.promote_types(x.dtype, torch.float32)
    p = (x.to(dtype) @ weight.to(dtype).T).softmax(dim=-1)
    experts = (p + bias).topk(k).indices
    chosen = p.gather(1, experts)
    weights = chosen if k == 1 else chosen / chosen.sum(1, keepdim=True)
    return p, experts.sort(1).values, weights
