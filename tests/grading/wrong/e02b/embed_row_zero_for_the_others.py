# exercise: embed
# says: a rank without the token's row added another one's

import torch.nn.functional as F


def embed(tokens, weight, tp):
    places = tokens - tp.rank * len(weight)
    elsewhere = (places < 0) | (places >= len(weight))
    return tp.reduce(F.embedding(places.masked_fill(elsewhere, 0), weight))
