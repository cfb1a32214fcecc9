# exercise: embed
# says: a rank's rows have the places 0 to V/N - 1
# the places of other ranks' words are looked up as they are, beyond the rank's rows

import torch
from torch.nn.functional import embedding


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    places = tokens - tp.rank * len(weight)
    mine = (places >= 0) & (places < len(weight))
    return tp.reduce(embedding(places, weight) * mine[..., None])
