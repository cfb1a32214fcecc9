# exercise: gradient_norm
# says: adds up every copy

import torch


def gradient_norm(parameters, lines):
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            square += p.grad.double().square().sum()
    return lines.world.all_reduce(square).sqrt()
