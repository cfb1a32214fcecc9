# exercise: embed
# says: the matrix stays

import torch.nn.functional as F


def embed(tokens, weight, tp):
    whole = tp.all_gather(weight[None])[0]
    return F.embedding(tokens, whole)
