# exercise: embed
# says: reduce hands the gradient on, once

import torch.nn.functional as F


def embed(tokens, weight, tp):
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places >= len(weight))
    rows = F.embedding(places.masked_fill(elsewhere, 0), weight)
    return tp.reduce(tp.copy(rows.masked_fill(elsewhere[..., None], 0)))
