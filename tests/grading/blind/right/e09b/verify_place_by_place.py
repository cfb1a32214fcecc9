# right: goes over the places (not the requests), and picks at each place for those that end there
import torch


def verify(p, q, drafts, coins, pick):
    count, g = drafts.shape
    tokens = torch.full((count, g + 1), -1, dtype=torch.int64)
    kept = torch.zeros(count, dtype=torch.int64)
    alive = torch.arange(count)
    for i in range(g):
        x = drafts[alive, i]
        here, there = p[alive, i], q[alive, i]
        own = torch.arange(len(alive))
        good = coins[alive, i] * there[own, x] < here[own, x]
        out = ~good
        if out.any():
            owed = torch.relu(here[out] - there[out])
            owed[(owed == 0).all(-1)] = here[out][(owed == 0).all(-1)]
            tokens[alive[out], i] = pick(owed)
        alive, x = alive[good], x[good]
        tokens[alive, i] = x
        kept[alive] += 1
    if len(alive):
        tokens[alive, g] = pick(p[alive, g])
    return tokens, kept
