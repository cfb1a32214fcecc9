# exercise: gradient_norm
# says: one without gradients adds 0
# A rank without gradients returns 0 at once and never joins the all-reduce: the others wait,
# and it has not the norm.

import torch
from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines) -> torch.Tensor:
    mine = [p for p in parameters if p.grad is not None]
    if not mine:
        return torch.zeros((), dtype=torch.float64)
    square = sum(p.grad.double().square().sum() / copies(layout_of(p), lines.mesh) for p in mine)
    return lines.world.all_reduce(square).sqrt()
