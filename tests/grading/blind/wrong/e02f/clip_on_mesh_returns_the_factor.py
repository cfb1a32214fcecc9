# exercise: clip_on_mesh
# says: that is the factor
# Returns what it multiplied by, not "the norm *before*".
import torch


def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    parameters = list(parameters)
    factor = limit / (gradient_norm(parameters, lines) + 1e-6)
    if factor < 1:
        for p in parameters:
            if p.grad is not None:
                p.grad *= factor
    return factor
