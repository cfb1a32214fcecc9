import torch
import torch.nn.functional as F


def verify(p, q, drafts, coins, pick):
    """Place after place, with who is still going; two draws a place, one is taken."""
    B, g = drafts.shape
    tokens = torch.full((B, g + 1), -1, dtype=torch.int64)
    kept = torch.zeros(B, dtype=torch.int64)
    going = torch.ones(B, dtype=torch.bool)
    for i in range(g):
        x = drafts[:, i : i + 1]
        px, qx = p[:, i].gather(1, x)[:, 0], q[:, i].gather(1, x)[:, 0]
        good = going & (coins[:, i] < px / qx)
        tokens[:, i] = torch.where(good, drafts[:, i], tokens[:, i])
        bad = going & ~good
        left = torch.relu(p[:, i] - q[:, i])
        left = torch.where(left.sum(1, keepdim=True) == 0, p[:, i], left)
        left = left / left.sum(1, keepdim=True)
        if bad.any():
            tokens[bad, i] = pick(left[bad])
        kept += good
        going = good
    if going.any():
        tokens[going, g] = pick(p[going, g])
    return tokens, kept


def ngram_draft(tokens, most, longest=3):
    """All finds in one pass, the best by (length, place)."""
    best = (0, 0)
    for end in range(1, len(tokens)):
        size = 0
        while size < min(longest, end) and tokens[end - 1 - size] == tokens[-1 - size]:
            size += 1
        best = max(best, (size, end))
    size, end = best
    return tokens[end : end + most] if size else []


def best_length(acceptance, draft_cost, passes):
    speeds, tokens, power = [], 0.0, 1.0
    for g in range(len(passes)):
        tokens += power
        power *= acceptance
        speeds.append(tokens / (draft_cost * g + passes[g]))
    best = 0
    for g in range(1, len(speeds)):
        if speeds[g] > speeds[best]:
            best = g
    return best, speeds


def tree_attention(parents, read):
    """Up from each node to the text."""
    n = len(parents)
    seen = torch.zeros((n, read + n), dtype=torch.bool)
    positions = torch.empty(n, dtype=torch.int64)
    for i in range(n):
        seen[i, :read] = True
        depth, at = 0, i
        while at != -1:
            seen[i, read + at] = True
            at, depth = parents[at], depth + 1
        positions[i] = read + depth - 1
    return seen, positions


def accepted_path(tokens, parents, choices):
    """One pass: children come behind their parents."""
    path, text, at = [], [choices[0]], -1
    for i in range(len(tokens)):
        if parents[i] == at and tokens[i] == text[-1]:
            path.append(i)
            text.append(choices[i + 1])
            at = i
    return path, text


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    """All heads at once; places without a token are masked."""
    B, T, _ = hidden.shape
    K = len(inner)
    h = hidden.detach()[:, :, None]
    h = h + F.silu(torch.einsum("btd,ked->btke", hidden.detach(), inner))
    logs = torch.einsum("btkd,kvd->btkv", h, outer).log_softmax(-1)
    loss = 0
    for k in range(K):
        wanted = torch.roll(tokens, -(k + 2), dims=1)
        own = logs[:, :, k].gather(2, wanted[:, :, None])[..., 0]
        there = torch.arange(T) < T - k - 2
        loss = loss - decay ** (k + 1) * (own * there).sum() / (B * there.sum())
    return loss
