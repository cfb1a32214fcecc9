# exercise: gradient_norm
# says: inside the square

import torch

from minitrain.parallel.layout import layout_of


def copies(layout, mesh):
    count = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split:
            count *= mesh[axis]
    return count


def gradient_norm(parameters, lines):
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            square += (p.grad.double() / copies(layout_of(p), lines.mesh)).square().sum()
    return lines.world.all_reduce(square).sqrt()
