# exercise: verify
# says: let each operation work on all requests

import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    tokens = torch.full((B, g + 1), -1)
    kept = torch.zeros(B, dtype=torch.long)
    for b in range(B):
        n = 0
        while n < g and coins[b, n] * q[b, n, drafts[b, n]] < p[b, n, drafts[b, n]]:
            n += 1
        kept[b] = n
        rest = p[b, n] if n == g else (p[b, n] - q[b, n]).clamp(min=0)
        if rest.sum() == 0:
            rest = p[b, n]
        tokens[b, :n] = drafts[b, :n]
        tokens[b, n] = pick(rest[None])[0]
    return tokens, kept
