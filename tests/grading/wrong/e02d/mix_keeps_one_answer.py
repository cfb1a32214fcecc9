# exercise: mix
# says: one of its answers only

import torch


def mix(x, weights, order, counts, experts):
    tokens = order // weights.shape[1]
    y = torch.zeros_like(x)
    y[tokens] += experts(x[tokens], counts) * weights.flatten()[order].unsqueeze(1)
    return y
