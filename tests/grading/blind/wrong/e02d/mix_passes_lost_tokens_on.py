# exercise: mix
# says: the residual stream around the layer carries it on
# a token whose choices were all dropped gets x itself, not zeros; the text: "A dropped choice
# adds nothing", and the residual stream goes *around* the layer, so x would be counted twice.

import torch


def mix(x, weights, order, counts, experts) -> torch.Tensor:
    tokens = order // weights.shape[1]
    answers = experts(x[tokens], counts)
    weighed = answers * weights.flatten()[order].unsqueeze(1)
    y = torch.zeros_like(x).index_add(0, tokens, weighed)
    lost = torch.ones(len(x), dtype=torch.bool, device=x.device)
    lost[tokens] = False
    return torch.where(lost.unsqueeze(1), x, y)  # such a token just passes by
