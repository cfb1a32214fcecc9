# exercise: gradient_norm
# says: of float64

import torch

from minitrain.parallel.layout import layout_of


def copies(layout, mesh):
    count = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split:
            count *= mesh[axis]
    return count


def gradient_norm(parameters, lines):
    square = torch.zeros(())
    for p in parameters:
        if p.grad is not None:
            square += p.grad.float().square().sum() / copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt()
