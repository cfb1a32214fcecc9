# exercise: route
# a mask of the chosen experts over all of p (einsum for the product, sort instead of topk); the
# experts come in index order, not by size
import torch


def route(x, weight, bias, k: int):
    kind = torch.promote_types(x.dtype, torch.float32)
    p = torch.softmax(torch.einsum("md,ed->me", x.to(kind), weight.to(kind)), dim=-1)
    with torch.no_grad():
        ranking = torch.argsort(p + bias, dim=1, descending=True)
        experts = ranking[:, :k].sort(dim=1).values
        mask = torch.zeros_like(p).scatter(1, experts, 1.0)
    masked = p * mask
    if k > 1:
        masked = masked / masked.sum(dim=1, keepdim=True)
    return p, experts, masked.take_along_dim(experts, dim=1)
