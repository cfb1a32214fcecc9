# exercise: verify
# differs: divides p by q; draws a token for every place of every request by one pick of B·(g + 1)
# rows, and uses that of the first rejection, found by argmax
import torch


def verify(p, q, drafts, coins, pick):
    B, places, V = p.shape
    g = places - 1
    at = drafts.unsqueeze(-1)
    ratio = (p[:, :-1].gather(-1, at) / q.gather(-1, at)).squeeze(-1)
    rejected = torch.cat([~(coins < ratio), torch.ones(B, 1, dtype=torch.bool)], dim=1)
    kept = rejected.int().argmax(dim=1)  # the first True

    left = torch.relu(p - torch.cat([q, q.new_zeros(B, 1, V)], dim=1))
    left = torch.where((left > 0).any(-1, keepdim=True), left, p)
    others = pick(left.reshape(-1, V)).reshape(B, places)

    place = torch.arange(places).expand(B, -1)
    told = torch.cat([drafts, drafts.new_full((B, 1), -1)], dim=1)
    told = torch.where(place == kept[:, None], others, told)
    return torch.where(place <= kept[:, None], told, -1), kept
