# right: a token's experts stand by number, not by p (the text leaves their order free); the balance loss reads f at every p and sums over tokens last
import torch


def route(x, weight, bias, k: int):
    wide = torch.promote_types(x.dtype, torch.float32)
    p = torch.softmax(torch.einsum("md,ed->me", x.to(wide), weight.to(wide)), dim=-1)
    ranked = torch.argsort(p.detach() + bias, dim=-1, descending=True)
    experts = ranked[:, :k].sort(dim=-1).values
    theirs = torch.take_along_dim(p, experts, dim=-1)
    weights = theirs if k == 1 else theirs / theirs.sum(dim=-1, keepdim=True)
    return p, experts, weights


def balance_loss(group, p, experts) -> torch.Tensor:
    E, K = p.shape[1], experts.shape[1]
    ones = torch.ones_like(experts).flatten()
    counts = torch.zeros(E, dtype=ones.dtype, device=ones.device)
    counts = group.all_reduce(counts.scatter_add(0, experts.flatten(), ones))
    choices = counts.sum().item()
    per_token = p @ (counts.to(p.dtype) / choices)  # Σ f p of each token
    return per_token.sum() * (E * K / choices)
