import torch


def verify(p, q, drafts, coins, pick):
    """The first rejection by argmin of a row that ends with one; both draws made, one taken."""
    B, g = drafts.shape
    each = torch.arange(B)
    at = drafts.unsqueeze(-1)
    ratio = torch.take_along_dim(p[:, :g], at, 2) / torch.take_along_dim(q, at, 2)
    ends = torch.cat([coins < ratio.squeeze(-1), torch.zeros(B, 1, dtype=torch.bool)], 1)
    kept = ends.int().argmin(1)
    bonus = pick(p[:, g])
    if g == 0:
        return bonus[:, None], kept
    place = kept.clamp(max=g - 1)
    left = torch.maximum(p[each, place] - q[each, place], torch.zeros(()))
    empty = left.sum(1) == 0
    left[empty] = p[each, place][empty]
    last = torch.where(kept == g, bonus, pick(left))
    out = torch.cat([drafts, last[:, None]], 1)
    out[each, kept] = last
    return out.where(torch.arange(g + 1)[None] <= kept[:, None], torch.tensor(-1)), kept
