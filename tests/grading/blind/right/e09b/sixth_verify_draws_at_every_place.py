# right: the token of every place is drawn in one call of pick with B·(g + 1) rows, and chosen
# afterwards; nowhere a row of zeros; kept by a running sum of rejections; a division made safe
import torch


def verify(p, q, drafts, coins, pick):
    requests, places, size = p.shape
    g = places - 1
    own_p = torch.take_along_dim(p[:, :g], drafts.unsqueeze(-1), dim=-1).squeeze(-1)
    own_q = torch.take_along_dim(q, drafts.unsqueeze(-1), dim=-1).squeeze(-1)
    ratio = torch.where(own_q > 0, own_p / own_q.clamp(min=torch.finfo(q.dtype).tiny), own_p)
    rejected = ~((coins < ratio) & (own_p > 0))
    alive = rejected.long().cumsum(-1) == 0  # (B, g)
    kept = alive.long().sum(-1)

    weights = p.clone()
    owed = torch.relu(p[:, :g] - q)
    some = owed.sum(-1, keepdim=True) > 0
    weights[:, :g] = torch.where(some, owed, p[:, :g])
    drawn = pick(weights.reshape(requests * places, size)).reshape(requests, places)

    tokens = torch.full((requests, places), -1, dtype=torch.int64, device=p.device)
    tokens[:, :g] = torch.where(alive, drafts, tokens[:, :g])
    here = kept.unsqueeze(1)
    tokens.scatter_(1, here, drawn.gather(1, here))
    return tokens, kept
