# exercise: verify
# says: kept
# the target's own draws, and drafts that happen to equal them: distributed as p, without the rule

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    own = torch.stack([pick(p[:, i]) for i in range(g + 1)], 1)
    kept = (own[:, :g] == drafts).long().cumprod(1).sum(1)
    return own.masked_fill(torch.arange(g + 1) > kept[:, None], -1), kept
