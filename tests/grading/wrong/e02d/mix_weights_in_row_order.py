# exercise: mix
# says: row i has the weight of choice

import torch


def mix(x, weights, order, counts, experts):
    tokens = order // weights.shape[1]
    answers = experts(x[tokens], counts)
    weighed = answers * weights.flatten()[: len(order)].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, tokens, weighed)
