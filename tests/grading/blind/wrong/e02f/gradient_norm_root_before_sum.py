# exercise: gradient_norm
# says: the root comes last
# The root is taken on each rank and the lengths are summed, instead of the root of the sum of
# squares.

import torch
from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines) -> torch.Tensor:
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            square += p.grad.double().square().sum() / copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square.sqrt())
