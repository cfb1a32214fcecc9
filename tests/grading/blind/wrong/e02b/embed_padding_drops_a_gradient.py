# exercise: embed
# says: row 0 has no gradient
# looks up with padding_idx=0 to protect row 0 from the tokens that are elsewhere, so each
# rank's first row never gets a gradient, even for its own tokens ("a token is looked up where
# its row is")

import torch
from torch.nn.functional import embedding


def embed(tokens: torch.Tensor, weight: torch.Tensor, tp) -> torch.Tensor:
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places >= len(weight))
    rows = embedding(places.masked_fill(elsewhere, 0), weight, padding_idx=0)
    return tp.reduce(rows.masked_fill(elsewhere[..., None], 0))
