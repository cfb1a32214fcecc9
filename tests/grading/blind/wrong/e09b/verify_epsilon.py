# exercise: verify
# says: as the same small number in all of them makes
# 1e-9 is added to every weight of the remainder so that its sum is over 0: where p = q it draws
# evenly from all tokens, not from p

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
    left = (own - other).clamp(min=0) + 1e-9
    tokens = torch.cat([drafts, torch.full((B, 1), -1)], dim=1)
    places = torch.arange(g + 1)
    tokens = torch.where(places < kept[:, None], tokens, -1)
    tokens[rows, kept] = pick(left)
    return tokens, kept
