import torch
import torch.nn.functional as F


def route(x, weight, bias, k):
    """Masks the others out: a softmax over the chosen logits is p over their sum."""
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    logits = torch.einsum("md,ed->me", x.to(dtype), weight.to(dtype))
    p = torch.softmax(logits, 1)
    order = torch.argsort(p.detach() + bias, dim=1, descending=True)[:, :k]
    if k == 1:
        return p, order, torch.take_along_dim(p, order, 1)
    return p, order, F.softmax(torch.take_along_dim(logits, order, 1), dim=1)
