import torch

from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines):
    """A vector of weighed lengths on each rank, one of which is 0."""
    lengths = [torch.tensor(0.0, dtype=torch.float64)]
    for p in parameters:
        if p.grad is None:
            continue
        length = torch.linalg.vector_norm(p.grad, dtype=torch.float64)
        lengths.append(length / copies(layout_of(p), lines.mesh) ** 0.5)
    total = torch.stack(lengths).pow(2).sum()
    lines.world.all_reduce(total)
    return torch.sqrt(total)
