# exercise: gradient_norm
# says: square `p.grad.double()`
# squares and adds up in the gradient's own dtype and only then goes to float64, so 300 in
# float16 makes the norm infinite and bfloat16 loses all but three digits; the docstring:
# "Length of the whole gradient, a float64 scalar".

import torch
from minitrain.parallel.layout import layout_of


def _copies(layout, mesh):  # exercise 2, right
    number = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split:
            number *= mesh[axis]
    return number


def gradient_norm(parameters, lines):
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            own = p.grad.square().sum().double()
            square += own / _copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt()
