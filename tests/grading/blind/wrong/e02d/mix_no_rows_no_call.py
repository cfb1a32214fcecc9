# exercise: mix
# says: also where there is none
# without rows `experts` is not called at all; the text says "call `experts(rows, counts)` ...
# once", and an `experts` that exchanges rows with other ranks is awaited there.

import torch


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    if len(order) == 0:
        return torch.zeros_like(x)
    tokens = order // weights.shape[1]
    answers = experts(x[tokens], counts)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    return torch.zeros_like(x).index_add(0, tokens, weighed.to(x.dtype))
