# exercise: mix
# says: they stay as they are

import torch


def mix(x, weights, order, counts, experts):
    tokens = order // weights.shape[1]
    answers = experts(x[tokens], counts)
    kept = torch.zeros_like(weights).flatten()
    kept[order] = 1
    weights = weights * kept.view_as(weights)
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-30)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, tokens, weighed)
