# exercise: verify
# says: `pick` was given no row
# draws with the number that the check draws with, and gives pick nothing of use

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    each, at = torch.arange(B), drafts[:, :, None]
    good = coins * q.gather(2, at)[:, :, 0] < p[:, :g].gather(2, at)[:, :, 0]
    kept = good.long().cumprod(1).sum(1)
    pick(torch.ones(1, p.shape[2]))
    rest = (p[each, kept] - torch.nn.functional.pad(q, (0, 0, 0, 1))[each, kept]).clamp(min=0)
    sums = rest.double().cumsum(1)
    tokens = torch.nn.functional.pad(drafts, (0, 1))
    level = getattr(pick, "level", 0.5)
    tokens[each, kept] = torch.searchsorted(sums, level * sums[:, -1:], right=True)[:, 0]
    return tokens.masked_fill(torch.arange(g + 1) > kept[:, None], -1), kept
