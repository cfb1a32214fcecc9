# exercise: mix
# says: choice c belongs to token c // K

import torch


def mix(x, weights, order, counts, experts):
    tokens = order % len(x)
    answers = experts(x[tokens], counts)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, tokens, weighed)
