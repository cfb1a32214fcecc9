# exercise: embed
# says: the rank before added a row for them
# Off by one: the first word of the next rank counts as one's own, too (<= instead of <).

import torch


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    rows = len(weight)
    first, last = tp.rank * rows, (tp.rank + 1) * rows
    mine = (tokens >= first) & (tokens <= last)
    found = weight[(tokens - first).clamp(0, rows - 1)]
    return tp.reduce(found * mine[..., None])
