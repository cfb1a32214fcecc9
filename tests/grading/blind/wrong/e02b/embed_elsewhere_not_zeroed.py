# exercise: embed
# says: a rank without the token's row added another one's: it adds zeros
# A word of another rank is looked up at row 0, and the row is left in the sum instead of zeros.

import torch


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    local = tokens - tp.rank * len(weight)
    elsewhere = (local < 0) | (local >= len(weight))
    return tp.reduce(weight[local.masked_fill(elsewhere, 0)])
