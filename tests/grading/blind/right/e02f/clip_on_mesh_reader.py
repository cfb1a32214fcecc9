# a reader's answer to `clip_on_mesh`, in which others made the mistakes of wrong/e02f/clip_on_mesh_reader.diff

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
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            if p.grad is not None:
                p.grad *= factor
    return norm
