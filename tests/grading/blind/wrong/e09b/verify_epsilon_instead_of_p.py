# exercise: verify
# says: equal weights
# an epsilon in the weights: where (p - q)+ is all 0 it draws uniformly, also tokens with p = 0,
# not from p

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    rows = torch.arange(B)
    at = drafts[..., None]
    ratio = (p[:, :g].gather(-1, at) / q.gather(-1, at))[..., 0]
    kept = (coins < ratio).long().cumprod(1).sum(1)
    zero = torch.zeros_like(p[:, :1])
    weights = (p - torch.cat([q, zero], 1)).clamp(min=1e-9)
    weights = weights / weights.sum(-1, keepdim=True)
    last = pick(weights[rows, kept])
    tokens = torch.cat([drafts, drafts.new_full((B, 1), -1)], 1)
    place = torch.arange(g + 1)[None]
    tokens = torch.where(place < kept[:, None], tokens, -1)
    tokens[rows, kept] = last
    return tokens, kept
