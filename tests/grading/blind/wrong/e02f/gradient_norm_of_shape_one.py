# exercise: gradient_norm
# says: the norm is a scalar
# returns a tensor of shape (1,) ("Length of the whole gradient, a float64 scalar")

import torch
from minitrain.parallel.layout import layout_of

if "copies" not in globals():  # an earlier exercise, right

    def copies(layout, mesh) -> int:
        count = 2 if "pp" in layout.partial else 1
        for axis in mesh.axes:
            if axis not in layout.split and axis != "pp":
                count *= mesh[axis]
        return count


def gradient_norm(parameters, lines) -> torch.Tensor:
    square = torch.zeros(1, dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            square += p.grad.double().square().sum() / copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt()
