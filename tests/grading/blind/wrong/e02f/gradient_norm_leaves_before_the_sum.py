# exercise: gradient_norm
# says: one without gradients adds 0
# a rank none of whose parameters has a gradient returns 0 at once and takes no part in the all-
# reduce; the docstring wants the length of the whole gradient, "equal on all ranks".

import torch
from minitrain.parallel.layout import layout_of


def _copies(layout, mesh):  # exercise 2, right
    number = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split:
            number *= mesh[axis]
    return number


def gradient_norm(parameters, lines):
    parameters = [p for p in parameters if p.grad is not None]
    if not parameters:
        return torch.zeros((), dtype=torch.float64)
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        square += p.grad.double().square().sum() / _copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt()
