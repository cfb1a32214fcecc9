# exercise: verify
# says: Either it was compared by <=
# compares with <=: a draft with p = 0 is kept by a coin that is exactly 0

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    rows = torch.arange(B)
    at = drafts[:, :, None]
    ratio = p[:, :g].gather(2, at)[:, :, 0] / q.gather(2, at)[:, :, 0]
    kept = (coins <= ratio).long().cumprod(1).sum(1)
    weights = p.clone()
    weights[:, :g] = (p[:, :g] - q).clamp(min=0)
    weights = weights[rows, kept]
    empty = weights.sum(1, keepdim=True) == 0
    weights = torch.where(empty, p[rows, kept], weights)
    tokens = torch.full((B, g + 1), -1)
    before = torch.arange(g) < kept[:, None]
    tokens[:, :g] = torch.where(before, drafts, -1)
    tokens[rows, kept] = pick(weights)
    return tokens, kept
