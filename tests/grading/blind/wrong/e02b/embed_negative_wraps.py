# exercise: embed
# says: whose places are below 0
# only tokens past this rank's rows are masked; those before them have a negative index and get
# a row from the end; "mind that Python takes a negative index from the end"

import torch


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    places = tokens - tp.rank * len(weight)
    elsewhere = places >= len(weight)
    rows = weight[places.masked_fill(elsewhere, 0) % len(weight)]
    return tp.reduce(rows.masked_fill(elsewhere[..., None], 0))
