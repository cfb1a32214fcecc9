# a reader's own answers, from the notebook alone
import torch


def verify(p, q, drafts, coins, pick):
    B, g = drafts.shape
    rows = torch.arange(B)
    drawn_from = q.gather(2, drafts[:, :, None])[:, :, 0]
    wanted = p[:, :g].gather(2, drafts[:, :, None])[:, :, 0]
    accepted = coins * drawn_from < wanted
    kept = accepted.long().cumprod(dim=1).sum(dim=1)
    # behind the last draft there is no q
    padded = torch.nn.functional.pad(q, (0, 0, 0, 1))
    target = p[rows, kept]
    owed = (target - padded[rows, kept]).clamp(min=0)
    nothing = owed.sum(dim=1, keepdim=True) == 0
    weights = torch.where(nothing, target, owed)
    tokens = torch.nn.functional.pad(drafts, (0, 1))
    tokens[rows, kept] = pick(weights)
    behind = torch.arange(g + 1) > kept[:, None]
    tokens = tokens.masked_fill(behind, -1)
    return tokens, kept


def ngram_draft(tokens: list, most: int, longest: int = 3) -> list:
    for size in range(min(longest, len(tokens) - 1), 0, -1):
        last = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            end = start + size
            if tokens[start:end] == last:
                return tokens[end : end + most]
    return []


def best_length(acceptance: float, draft_cost: float, passes: list):
    speeds = []
    for g, cost in enumerate(passes):
        told = sum(acceptance**i for i in range(g + 1))
        speeds.append(told / (g * draft_cost + cost))
    best = speeds.index(max(speeds))
    return best, speeds


def tree_attention(parents: list, read: int):
    n = len(parents)
    nodes = torch.eye(n, dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            nodes[node] |= nodes[parent]
    text = torch.ones(n, read, dtype=torch.bool)
    seen = torch.cat([text, nodes], dim=1)
    positions = seen.sum(dim=1) - 1
    return seen, positions


def accepted_path(tokens: list, parents: list, choices: list):
    at, path = -1, []
    # children come behind their parents, so that one walk over the nodes is enough
    for node, parent in enumerate(parents):
        own = choices[at + 1]
        if parent == at and tokens[node] == own:
            path.append(node)
            at = node
    return path, [tokens[node] for node in path] + [choices[at + 1]]


def medusa_loss(hidden, inner, outer, tokens, decay=0.8):
    hidden = hidden.detach()
    loss = 0.0
    for k in range(1, len(inner) + 1):
        h = hidden[:, : -k - 1]
        wanted = tokens[:, k + 1 :]
        x = h + torch.nn.functional.silu(h @ inner[k - 1].t())
        logits = x @ outer[k - 1].t()
        own = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten()
        )
        loss = loss + decay**k * own
    return loss
