# exercise: verify
# says: the bonus token comes all the same
# fails at g = 0: looks up q at min(kept, g - 1), which does not exist there

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    rows = torch.arange(B)
    at = drafts[..., None]
    ratio = (p[:, :g].gather(-1, at) / q.gather(-1, at))[..., 0]
    kept = (coins < ratio).long().cumprod(1).sum(1)
    there = p[rows, kept]
    left = (there - q[rows, kept.clamp(max=g - 1)]).clamp(min=0)
    plain = (kept == g) | (left.sum(1) == 0)
    last = pick(torch.where(plain[:, None], there, left))
    tokens = torch.full((B, g + 1), -1)
    tokens[:, :g] = drafts
    tokens[torch.arange(g + 1) > kept[:, None]] = -1
    tokens[rows, kept] = last
    return tokens, kept
