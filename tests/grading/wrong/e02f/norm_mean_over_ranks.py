# exercise: gradient_norm
# says: mean over ranks

import torch


def gradient_norm(parameters, lines):
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            square += p.grad.double().square().sum()
    return lines.world.all_reduce(square, op="avg").sqrt()
