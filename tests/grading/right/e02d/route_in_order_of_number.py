import torch


def route(x, weight, bias, k):
    """The experts of a token from the lowest number to the highest; the softmax by its logarithm."""
    wide = torch.promote_types(x.dtype, torch.float32)
    p = torch.log_softmax(x.to(wide) @ weight.to(wide).t(), dim=1).exp()
    experts = torch.topk(p + bias, k, dim=1).indices.sort(1).values
    mine = p[torch.arange(len(x)).unsqueeze(1), experts]
    return p, experts, mine if k == 1 else mine / mine.sum(1).unsqueeze(1)
