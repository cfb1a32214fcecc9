# exercise: embed
# says: index | a rank without the token's row added another one's

import torch.nn.functional as F


def embed(tokens, weight, tp):
    places = tokens - tp.rank * len(weight)
    beyond = places >= len(weight)
    rows = weight[places.masked_fill(beyond, 0)]
    return tp.reduce(rows.masked_fill(beyond[..., None], 0))
