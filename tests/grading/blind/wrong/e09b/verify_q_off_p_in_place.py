# exercise: verify
# says: changed its input `p`
# q is subtracted from p in place: the caller's p is changed (and p is no longer there to draw
# from where all is 0)

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    px = p[:, :g].gather(2, drafts[:, :, None])[:, :, 0]
    qx = q.gather(2, drafts[:, :, None])[:, :, 0]
    keep = coins < px / qx
    kept = keep.long().cumprod(1).sum(1)
    rows = torch.arange(B)
    own = p[rows, kept]
    p[:, :g] -= q
    rest = p.clamp_(min=0)[rows, kept]
    rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, own)
    tokens = torch.full((B, g + 1), -1, dtype=torch.long)
    tokens[:, :g] = torch.where(torch.arange(g) < kept[:, None], drafts, -1)
    tokens[rows, kept] = pick(rest)
    return tokens, kept
