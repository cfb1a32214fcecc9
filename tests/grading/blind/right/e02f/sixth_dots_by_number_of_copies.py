# exercise: gradient_norm
# dot products of flat float64 copies, sorted by their number of copies; clip_on_mesh clamps the
# factor to 1 and always multiplies
from collections import defaultdict

import torch
from minitrain.parallel.layout import layout_of


def copies(layout, mesh) -> int:
    """How many ranks hold the same elements of a parameter."""
    # pp is no plain factor: a layer is on one stage, a tied table on two
    holders = 2 if "pp" in layout.partial else 1
    for axis in mesh.axes:
        if axis != "pp" and axis not in layout.split:
            holders *= mesh[axis]
    return holders


def gradient_norm(parameters, lines) -> torch.Tensor:
    held_by = defaultdict(list)
    for p in parameters:
        if p.grad is not None:
            flat = p.grad.detach().to(torch.float64).flatten()
            held_by[copies(layout_of(p), lines.mesh)].append(torch.dot(flat, flat))
    shares = [torch.stack(dots).sum() / c for c, dots in held_by.items()]
    zero = torch.zeros((), dtype=torch.float64)
    return torch.sqrt(lines.world.all_reduce(sum(shares, start=zero)))


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    parameters = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(parameters, lines)
    factor = (limit / (norm + 1e-6)).clamp(max=1.0).item()
    with torch.no_grad():
        for p in parameters:
            p.grad *= factor
    return norm
