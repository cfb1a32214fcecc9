# exercise: gradient_norm
# says: square `p.grad.double()`
# Squares in the gradient's own format and converts the sum afterwards: float16 squares overflow
# or vanish.

import torch
from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            squares = p.grad.square().sum().double()
            total += squares / copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(total).sqrt()
