# exercise: mix
# says: the residual stream around the layer

import torch


def mix(x, weights, order, counts, experts):
    tokens = order // weights.shape[1]
    answers = experts(x[tokens], counts)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    y = torch.zeros_like(x).index_add(0, tokens, weighed)
    there = torch.zeros(len(x), dtype=torch.bool)
    there[tokens] = True
    return torch.where(there.unsqueeze(1), y, x)
