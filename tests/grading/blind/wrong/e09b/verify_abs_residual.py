# exercise: verify
# says: where q is larger nothing is missing
# after a rejection it draws from |p - q|, not from (p - q)+

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    at = drafts[:, :, None]
    p_x = p[:, :g].gather(2, at)[:, :, 0]
    q_x = q.gather(2, at)[:, :, 0]
    ok = coins * q_x < p_x
    kept = ok.long().cumprod(1).sum(1)
    q_wide = torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)
    rows = torch.arange(B)
    own, other = p[rows, kept], q_wide[rows, kept]
    left = (own - other).abs()
    left = torch.where(left.sum(1, keepdim=True) > 0, left, own)
    tokens = torch.cat([drafts, torch.full((B, 1), -1)], dim=1)
    places = torch.arange(g + 1)
    tokens = torch.where(places < kept[:, None], tokens, -1)
    tokens[rows, kept] = pick(left)
    return tokens, kept
