# exercise: embed
# says: tokens that are elsewhere give their gradients to a row of this rank
# the zeros are written under `no_grad`, so autograd still believes that a token of elsewhere
# was looked up in row 0, and row 0 of every rank gets the gradients of all of them: "A token
# that is elsewhere adds zeros here"

import torch


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places >= len(weight))
    rows = weight[places.masked_fill(elsewhere, 0)]
    with torch.no_grad():
        rows[elsewhere] = 0
    return tp.reduce(rows)
