# exercise: mix
# says: they stay as they are
# where a choice was dropped, the token's other weight is enlarged so that the sum stays: "A
# dropped choice adds nothing, and the other weight stays as it is".

import torch


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    kept = torch.zeros_like(weights).flatten()
    kept[order] = 1
    kept = weights * kept.view_as(weights)
    left = kept.sum(1, keepdim=True)
    left = torch.where(left > 0, left, torch.ones_like(left))
    whole = kept * (weights.sum(1, keepdim=True) / left)
    tokens = order // weights.shape[1]
    answers = experts(x[tokens], counts)
    weighed = answers * whole.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, tokens, weighed.to(x.dtype))
