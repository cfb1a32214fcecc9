# exercise: clip_on_mesh
# says: In place, please
# Puts a new scaled tensor into .grad instead of scaling the gradient in place.

import torch


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    parameters = list(parameters)
    norm = gradient_norm(parameters, lines)
    factor = min(1.0, (limit / (norm + 1e-6)).item())
    for p in parameters:
        if p.grad is not None:
            p.grad = p.grad * factor
    return norm
