# exercise: clip_on_mesh
# says: also where the norm is a hair below the limit
# asks norm > limit instead of factor < 1, so between limit - 1e-6 and limit nothing is scaled
# (norm 1, limit 1: factor 0.999999; norm 5e-7, limit 1e-6: factor 2/3); the text: the factor is
# "`limit / (norm + 1e-6)`; where it is above 1 nothing changes".

import torch
from minitrain.parallel.layout import layout_of


def _copies(layout, mesh):  # exercise 2, right
    number = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split:
            number *= mesh[axis]
    return number


def _gradient_norm(parameters, lines):  # exercise 3, right
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            square += p.grad.double().square().sum() / _copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt()


def clip_on_mesh(parameters, limit, lines):
    parameters = list(parameters)
    norm = _gradient_norm(parameters, lines)
    if norm > limit:
        factor = limit / (norm + 1e-6)
        for p in parameters:
            if p.grad is not None:
                p.grad *= factor
    return norm
