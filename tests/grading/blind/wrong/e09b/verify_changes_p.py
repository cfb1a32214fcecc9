# exercise: verify
# says: changed its input
# subtracts q from p in place (a view): the caller's p is another one afterwards

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    rows = torch.arange(B)
    at = drafts[..., None]
    ratio = (p[:, :g].gather(-1, at) / q.gather(-1, at))[..., 0]
    kept = (coins < ratio).long().cumprod(1).sum(1)
    plain = p[rows, kept]
    owed = p
    owed[:, :g] -= q
    weights = owed[rows, kept].clamp(min=0)
    weights = torch.where(weights.sum(1, keepdim=True) > 0, weights, plain)
    tokens = torch.full((B, g + 1), -1)
    tokens[:, :g] = torch.where(torch.arange(g) < kept[:, None], drafts, -1)
    tokens[rows, kept] = pick(weights)
    return tokens, kept
