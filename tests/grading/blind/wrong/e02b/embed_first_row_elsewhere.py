# exercise: embed
# says: the first row of each rank is missing
# counts place 0 as elsewhere, so the tokens 0, V/N, 2V/N, ... come out as zeros; "Rank r has
# rows r·V/N to (r+1)·V/N"

import torch


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    places = tokens - tp.rank * len(weight)
    elsewhere = (places <= 0) | (places >= len(weight))
    rows = weight[places.masked_fill(elsewhere, 0)]
    return tp.reduce(rows.masked_fill(elsewhere[..., None], 0))
