# exercise: embed
# says: changed its input
# subtracts the rank's first row from `tokens` in place, so the caller's tokens are changed on
# every rank but 0, and the same call again gives something else ("tokens (B, T) ... -> (B, T,
# D)": a lookup, not a change of its input)

import torch


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    tokens -= tp.rank * len(weight)
    elsewhere = (tokens < 0) | (tokens >= len(weight))
    rows = weight[tokens.masked_fill(elsewhere, 0)]
    return tp.reduce(rows.masked_fill(elsewhere[..., None], 0))
