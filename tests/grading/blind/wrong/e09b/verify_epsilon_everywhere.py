# exercise: verify
# says: equal weights
# guards against an empty remainder with + 1e-10 everywhere instead of falling back on p: draws
# uniformly then, also tokens of p = 0

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    px = p[:, :g].gather(2, drafts[:, :, None])[:, :, 0]
    qx = q.gather(2, drafts[:, :, None])[:, :, 0]
    keep = coins < px / qx
    kept = keep.long().cumprod(1).sum(1)
    rows = torch.arange(B)
    padded = torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)
    rest = (p - padded)[rows, kept].clamp(min=0) + 1e-10
    tokens = torch.full((B, g + 1), -1, dtype=torch.long)
    tokens[:, :g] = torch.where(torch.arange(g) < kept[:, None], drafts, -1)
    tokens[rows, kept] = pick(rest / rest.sum(1, keepdim=True))
    return tokens, kept
