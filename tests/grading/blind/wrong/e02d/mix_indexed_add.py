# exercise: mix
# says: `y[tokens] += …` writes the last one where a number comes twice
# `y[token] += ...` writes each token once: of two rows of one token only one is added.

import torch


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    token = order // weights.shape[1]
    answers = experts(x[token], counts) * weights.flatten()[order, None]
    y = torch.zeros_like(x)
    y[token] += answers
    return y
