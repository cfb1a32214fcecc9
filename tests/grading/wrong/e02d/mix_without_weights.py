# exercise: mix
# says: without their weights

import torch


def mix(x, weights, order, counts, experts):
    tokens = order // weights.shape[1]
    answers = experts(x[tokens], counts)
    weighed = answers
    return torch.zeros_like(x).index_add(0, tokens, weighed)
