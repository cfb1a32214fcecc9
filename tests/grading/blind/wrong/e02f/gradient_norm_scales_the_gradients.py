# exercise: gradient_norm
# says: a `.grad` was changed on the way
# divides every .grad by the root of its copies in place to weigh it, so the step that follows
# is taken with other gradients; the function only returns the "Length of the whole gradient",
# and weighs "a square".

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
            p.grad /= _copies(layout_of(p), lines.mesh) ** 0.5
            square += p.grad.double().square().sum()
    return lines.world.all_reduce(square).sqrt()
