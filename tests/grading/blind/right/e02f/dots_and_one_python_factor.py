# right: the norm by dot products stacked and summed once; clipping by a Python number and mul_
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
    shares = [torch.zeros((), dtype=torch.float64)]
    for p in parameters:
        if p.grad is not None:
            wide = p.grad.detach().to(torch.float64).flatten()
            shares.append(torch.dot(wide, wide) / copies(layout_of(p), lines.mesh))
    return lines.world.all_reduce(torch.stack(shares).sum()).sqrt()


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    held = [p for p in parameters]
    norm = gradient_norm(held, lines)
    factor = limit / (norm.item() + 1e-6)
    if factor < 1.0:
        with torch.no_grad():
            for p in held:
                if p.grad is not None:
                    p.grad.mul_(factor)
    return norm
