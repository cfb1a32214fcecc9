# exercise: embed
# says: the last row of each rank is missing

import torch.nn.functional as F


def embed(tokens, weight, tp):
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places > len(weight) - 2)
    rows = F.embedding(places.masked_fill(elsewhere, 0), weight)
    return tp.reduce(rows.masked_fill(elsewhere[..., None], 0))
