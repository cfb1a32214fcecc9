# exercise: verify
# says: something was taken off the bonus token's p
# the bonus token is drawn from (p_{g+1} - q_g)+ : the index into q is clamped to the last draft
# instead of having no q there

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    px = p[:, :g].gather(2, drafts[:, :, None])[:, :, 0]
    qx = q.gather(2, drafts[:, :, None])[:, :, 0]
    keep = coins < px / qx
    kept = keep.long().cumprod(1).sum(1)
    rows = torch.arange(B)
    own = p[rows, kept]
    rest = own
    if g:
        rest = (own - q[rows, kept.clamp(max=g - 1)]).clamp(min=0)
        rest = torch.where(rest.sum(1, keepdim=True) > 0, rest, own)
    tokens = torch.full((B, g + 1), -1, dtype=torch.long)
    tokens[:, :g] = torch.where(torch.arange(g) < kept[:, None], drafts, -1)
    tokens[rows, kept] = pick(rest)
    return tokens, kept
