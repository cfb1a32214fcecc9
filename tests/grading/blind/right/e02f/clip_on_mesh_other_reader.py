# a reader's answer to `clip_on_mesh`, in which others made the mistakes of wrong/e02f/clip_on_mesh_other_reader.diff

import torch
from minitrain.parallel.layout import layout_of

if "copies" not in globals():  # an earlier exercise, right

    def copies(layout, mesh) -> int:
        count = 2 if "pp" in layout.partial else 1
        for axis in mesh.axes:
            if axis not in layout.split and axis != "pp":
                count *= mesh[axis]
        return count


if "gradient_norm" not in globals():  # an earlier exercise, right

    def gradient_norm(parameters, lines) -> torch.Tensor:
        square = torch.zeros((), dtype=torch.float64)
        for p in parameters:
            if p.grad is not None:
                many = copies(layout_of(p), lines.mesh)
                square += p.grad.double().square().sum() / many
        return lines.world.all_reduce(square).sqrt()


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    parameters = list(parameters)
    norm = gradient_norm(parameters, lines)
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            if p.grad is not None:
                p.grad *= factor
    return norm
