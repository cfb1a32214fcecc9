# exercise: gradient_norm
# says: have returned ranks have different parameters, some of them no gradient
# A rank that has no gradients returns zero at once and sends nothing: the others wait for it,
# and it does not get the whole norm.

import torch
from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines) -> torch.Tensor:
    shares = [
        p.grad.double().square().sum() / copies(layout_of(p), lines.mesh)
        for p in parameters
        if p.grad is not None
    ]
    if not shares:
        return torch.zeros((), dtype=torch.float64)
    return lines.world.all_reduce(torch.stack(shares).sum()).sqrt()
