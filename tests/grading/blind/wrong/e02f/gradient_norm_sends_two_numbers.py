# exercise: gradient_norm
# says: gradients themselves need not travel
# It all-reduces two numbers, the sum of squares and how many gradients there are; the docstring
# says "it sends one number".

import torch
from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines) -> torch.Tensor:
    found = torch.zeros(2, dtype=torch.float64)  # squares, gradients
    for p in parameters:
        if p.grad is not None:
            square = p.grad.double().square().sum()
            found[0] += square / copies(layout_of(p), lines.mesh)
            found[1] += 1
    found = lines.world.all_reduce(found)
    if found[1] == 0:  # no rank has any
        return torch.zeros((), dtype=torch.float64)
    return found[0].sqrt()
