# exercise: embed
# says: the rank before added a row for them
# the first token of the next rank counts as this rank's (> for >=) and gets its last row as
# well; "rows r·V/N to (r+1)·V/N, not counting the last"

import torch


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places > len(weight))
    rows = weight[places.clamp(0, len(weight) - 1)]
    return tp.reduce(rows.masked_fill(elsewhere[..., None], 0))
