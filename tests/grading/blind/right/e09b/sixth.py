# a reader's own answers, from the notebook alone
import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    rows = torch.arange(B, device=p.device)
    places = torch.arange(g + 1, device=p.device)
    wanted = p[:, :g].gather(2, drafts[:, :, None])[:, :, 0]
    drafted = q.gather(2, drafts[:, :, None])[:, :, 0]
    # strictly below: where p is 0 nothing is kept, whatever the coin
    accepted = coins * drafted < wanted
    kept = accepted.long().cumprod(dim=1).sum(dim=1)
    # behind the last draft nothing was drafted: a q of zeros
    padded_q = torch.cat([q, torch.zeros_like(p[:, :1])], dim=1)
    padded_drafts = torch.cat([drafts, torch.full_like(kept[:, None], -1)], dim=1)
    last = p[rows, kept]
    rest = (last - padded_q[rows, kept]).clamp(min=0)
    none = rest.sum(dim=1, keepdim=True) == 0
    rest = torch.where(none, last, rest)
    tokens = padded_drafts.masked_fill(places >= kept[:, None], -1)
    tokens[rows, kept] = pick(rest)
    return tokens, kept


def ngram_draft(tokens: list, most: int, longest: int = 3) -> list:
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        end = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == end:
                return tokens[start + size : start + size + most]
    return []


def best_length(acceptance: float, draft_cost: float, passes: list):
    told, speeds = 0.0, []
    for g, cost in enumerate(passes):
        told += acceptance**g
        speeds.append(told / (g * draft_cost + cost))
    best = speeds.index(max(speeds))
    return best, speeds


def tree_attention(parents: list, read: int):
    n = len(parents)
    text = torch.ones(n, read, dtype=torch.bool)
    above = torch.eye(n, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            above[node] |= above[parent]
    seen = torch.cat([text, above], dim=1)
    positions = seen.sum(dim=1) - 1
    return seen, positions


def accepted_path(tokens: list, parents: list, choices: list):
    children = {(parent, token): i for i, (parent, token) in enumerate(zip(parents, tokens))}
    kept, new, at = [], [], -1
    while (at, choices[at + 1]) in children:
        at = children[at, choices[at + 1]]
        kept.append(at)
        new.append(tokens[at])
    new.append(choices[at + 1])
    return kept, new


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    hidden = hidden.detach()
    loss = 0.0
    for k in range(1, len(inner) + 1):
        h = hidden[:, : -k - 1]
        wanted = tokens[:, k + 1 :]
        x = h + torch.nn.functional.silu(h @ inner[k - 1].t())
        logits = x @ outer[k - 1].t()
        mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())
        loss = loss + decay**k * mean
    return loss
