# exercise: clip_on_mesh
# says: can be walked once
# `parameters` is walked twice without a list: a generator is used up by the norm and nothing is
# clipped.

import torch


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    norm = gradient_norm(parameters, lines)
    factor = limit / (norm + 1e-6)
    if factor < 1:
        for p in parameters:
            if p.grad is not None:
                p.grad *= factor
    return norm
