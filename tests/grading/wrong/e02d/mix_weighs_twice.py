# exercise: mix
# says: multiplied twice

import torch


def mix(x, weights, order, counts, experts):
    tokens = order // weights.shape[1]
    answers = experts(x[tokens] * weights.flatten()[order].unsqueeze(1), counts)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, tokens, weighed)
