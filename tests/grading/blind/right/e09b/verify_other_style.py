# right: draws at every place in one call of pick, then gathers; the first rejection by argmax over a sentinel
import torch


def verify(p, q, drafts, coins, pick):
    B, places, V = p.shape
    none = drafts.new_full((B, 1), -1)
    ratio = p[:, :-1].gather(2, drafts.unsqueeze(2)) / q.gather(2, drafts.unsqueeze(2))
    rejected = coins >= ratio.squeeze(2)
    sentinel = torch.ones(B, 1, dtype=torch.bool)
    kept = torch.cat([rejected, sentinel], dim=1).int().argmax(dim=1)
    weights = torch.relu(p - torch.nn.functional.pad(q, (0, 0, 0, 1)))
    empty = weights.sum(-1, keepdim=True) <= 0
    weights = torch.where(empty, p, weights)
    drawn = pick(weights.reshape(-1, V)).view(B, places)
    out = torch.cat([drafts, none], dim=1)
    number = torch.arange(places).expand(B, -1)
    out = torch.where(number == kept[:, None], drawn, out)
    return out.masked_fill(number > kept[:, None], -1), kept
