# right: a replacement is picked at every place at once, and the one at the first rejection is used
import torch


def verify(p, q, drafts, coins, pick):
    B, g1, V = p.shape
    g = g1 - 1
    x = drafts.unsqueeze(-1)
    ratio = (p[:, :-1].gather(-1, x) / q.gather(-1, x)).squeeze(-1)
    refused = torch.cat([coins >= ratio, torch.ones(B, 1, dtype=torch.bool)], 1)
    kept = refused.int().argmax(1)
    rest = torch.relu(p - torch.nn.functional.pad(q, (0, 0, 0, 1)))
    weights = torch.where(rest.sum(-1, keepdim=True) == 0, p, rest)
    chosen = pick(weights.reshape(-1, V)).reshape(B, g1)
    place = torch.arange(g1).expand(B, g1)
    longer = torch.nn.functional.pad(drafts, (0, 1), value=-1)
    tokens = torch.where(place < kept[:, None], longer, -1)
    tokens = torch.where(place == kept[:, None], chosen, tokens)
    return tokens, kept
