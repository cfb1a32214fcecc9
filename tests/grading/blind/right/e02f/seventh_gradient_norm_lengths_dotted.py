# exercise: gradient_norm
# how it differs: one vector norm a parameter over the root of its copies, stacked, squared and
# summed as a dot product; a list, not a running sum.
import torch


def gradient_norm(parameters, lines) -> torch.Tensor:
    own = [torch.zeros((), dtype=torch.float64)]
    for p in parameters:
        if p.grad is not None:
            length = torch.linalg.vector_norm(p.grad.detach(), dtype=torch.float64)
            own.append(length / copies(layout_of(p), lines.mesh) ** 0.5)
    lengths = torch.stack(own)
    return torch.sqrt(lines.world.all_reduce(lengths @ lengths))
