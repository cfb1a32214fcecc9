# exercise: mix
# says: the residual stream around the layer carries it on
# a token all of whose choices were dropped gets its x as answer; "A dropped choice adds
# nothing", the residual stream goes *around* the layer, so its answer is 0.

import torch


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    tokens = order // weights.shape[1]
    answers = experts(x[tokens], counts)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    y = torch.zeros_like(x).index_add(0, tokens, weighed.to(x.dtype))
    served = torch.zeros(len(x), dtype=torch.bool)
    served[tokens] = True
    return torch.where(served.unsqueeze(1), y, x)
