# exercise: smooth
# says: alpha have changed places
# alpha and 1 - alpha are swapped: right at the default 0.5 only.

import torch


@torch.no_grad()
def smooth(norm, linears, max_abs: torch.Tensor, alpha: float = 0.5):
    columns = torch.stack([m.weight.abs().amax(dim=0) for m in linears]).amax(dim=0)
    s = max_abs.clamp(min=1e-5) ** (1 - alpha) / columns.clamp(min=1e-5) ** alpha
    norm.weight.div_(s)
    for linear in linears:
        linear.weight.mul_(s)
    return s
