# exercise: embed
# says: `tp.reduce` adds up the ranks'

import torch.nn.functional as F


def embed(tokens, weight, tp):
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places >= len(weight))
    rows = F.embedding(places.masked_fill(elsewhere, 0), weight)
    return rows.masked_fill(elsewhere[..., None], 0)
