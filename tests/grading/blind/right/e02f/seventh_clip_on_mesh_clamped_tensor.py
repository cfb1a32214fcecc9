# exercise: clip_on_mesh
# how it differs: collects the gradients, multiplies always, by a tensor that clamp keeps at or
# below 1 (as PyTorch does), no branch.
import torch


@torch.no_grad()
def clip_on_mesh(parameters, limit: float, lines) -> torch.Tensor:
    parameters = [p for p in parameters if p.grad is not None]
    norm = gradient_norm(parameters, lines)
    factor = torch.clamp(limit / (norm + 1e-6), max=1.0)
    for p in parameters:
        p.grad *= factor
    return norm
