# exercise: gradient_norm
# says: that is with 1e-6 more, and this belongs to clipping
# Adds the 1e-6 of the next exercise to the norm itself: "Length of the whole gradient".
import torch
from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines) -> torch.Tensor:
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            square += p.grad.double().square().sum() / copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt() + 1e-6
