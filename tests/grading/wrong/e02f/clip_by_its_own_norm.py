# exercise: clip_on_mesh
# says: own norm

import torch


def clip_on_mesh(parameters, limit, lines):
    parameters = [p for p in parameters if p.grad is not None]
    norm = torch.stack([p.grad.norm() for p in parameters]).norm()
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            p.grad *= factor
    return norm
