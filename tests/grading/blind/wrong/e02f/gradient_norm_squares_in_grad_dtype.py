# exercise: gradient_norm
# says: squares of narrow dtypes overflow
# Squares in the dtype of the gradient and makes it float64 only after the sum: float16
# overflows or vanishes.

import torch
from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines) -> torch.Tensor:
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            square += p.grad.square().sum().double() / copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt()
