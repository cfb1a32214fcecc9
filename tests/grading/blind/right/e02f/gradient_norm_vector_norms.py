# right: lengths of tensors weighted by 1/sqrt(copies), one vector norm of them, and a tensor of one element that travels.
import torch
from minitrain.parallel.layout import layout_of


def gradient_norm(parameters, lines) -> torch.Tensor:
    lengths = [0.0]
    for p in parameters:
        if p.grad is None:
            continue
        length = torch.linalg.vector_norm(p.grad.detach(), dtype=torch.float64)
        lengths.append(length.item() / copies(layout_of(p), lines.mesh) ** 0.5)
    own = torch.linalg.vector_norm(torch.tensor(lengths, dtype=torch.float64))
    whole = lines.world.all_reduce((own * own).reshape(1))
    return torch.sqrt(whole)[0]
