# exercise: gradient_norm
# says: divide the square by it
# divides the gradient, not its square, by the number of copies, so c ranks add only 1/c of the
# square together; the text: "Every element counts once: weigh a square by how many ranks will
# add it".

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
            share = p.grad.double() / _copies(layout_of(p), lines.mesh)
            square += share.square().sum()
    return lines.world.all_reduce(square).sqrt()
