# exercise: gradient_norm
# says: `p.grad.double()`
# takes each gradient's norm in its own dtype and turns only that into float64; in float16 it is
# rounded, or infinite ("Gradients may be float16: square in float64")

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
    square = torch.zeros((), dtype=torch.float64)
    for p in parameters:
        if p.grad is not None:
            own = torch.linalg.vector_norm(p.grad).double()
            square += own.square() / copies(layout_of(p), lines.mesh)
    return lines.world.all_reduce(square).sqrt()
