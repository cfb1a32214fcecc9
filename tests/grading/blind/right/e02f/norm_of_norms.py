# right: gradient_norm collects weighed norms by parameter and squares them together; clip_on_mesh scales detached gradients with a plain float; copies filters a dict of sizes.
from math import prod

import torch
from minitrain.parallel.layout import layout_of


def copies(layout, mesh):
    sizes = dict(zip(mesh.axes, mesh.shape))
    sizes.pop("pp", None)
    number = prod(size for axis, size in sizes.items() if axis not in layout.split)
    return number * (1 + ("pp" in layout.partial))


def gradient_norm(parameters, lines):
    norms = [torch.zeros((), dtype=torch.float64)]
    for p in parameters:
        if p.grad is None:
            continue
        holders = copies(layout_of(p), lines.mesh)
        length = torch.linalg.vector_norm(p.grad.detach(), dtype=torch.float64)
        norms.append(length / holders**0.5)
    mine = torch.stack(norms).square().sum()
    return torch.sqrt(lines.world.all_reduce(mine))


def clip_on_mesh(parameters, limit, lines):
    held = [*parameters]
    before = gradient_norm(held, lines)
    scale = float(limit / (before + 1e-6))
    if not scale < 1:
        return before
    for gradient in (p.grad for p in held if p.grad is not None):
        gradient.detach().mul_(scale)
    return before
