# exercise: verify
# says: of five requests three have nothing left of (p
# falls back to p only if (p - q)+ is 0 in the whole batch, not for each row of its own

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    rows = torch.arange(B)
    at = drafts[..., None]
    px = p[:, :g].gather(-1, at).squeeze(-1)
    qx = q.gather(-1, at).squeeze(-1)
    kept = (coins * qx < px).long().cumprod(dim=1).sum(dim=1)
    padded = torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)
    weights = (p - padded)[rows, kept].clamp(min=0)
    if weights.sum() == 0:
        weights = p[rows, kept]
    tokens = torch.full((B, g + 1), -1, dtype=torch.long)
    keep = torch.arange(g)[None] < kept[:, None]
    tokens[:, :g][keep] = drafts[keep]
    tokens[rows, kept] = pick(weights)
    return tokens, kept
