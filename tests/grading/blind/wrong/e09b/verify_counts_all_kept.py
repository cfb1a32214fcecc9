# exercise: verify
# says: drafts behind the first rejected one were counted
# counts every draft that passes its coin, also those behind a rejected one (sum instead of
# cumprod)

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    px = p[:, :g].gather(2, drafts[:, :, None])[:, :, 0]
    qx = q.gather(2, drafts[:, :, None])[:, :, 0]
    keep = coins < px / qx
    kept = keep.sum(1)
    rows = torch.arange(B)
    own = p[rows, kept]
    padded = torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)
    rest = (own - padded[rows, kept]).clamp(min=0)
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, own)
    tokens = torch.full((B, g + 1), -1, dtype=torch.long)
    tokens[:, :g] = torch.where(torch.arange(g) < kept[:, None], drafts, -1)
    tokens[rows, kept] = pick(rest)
    return tokens, kept
