# exercise: smooth
# says: so the largest of all their columns
# The largest magnitude of a column is taken from the first linear layer only, not over all that
# read the same x.

import torch


@torch.no_grad()
def smooth(norm, linears, max_abs: torch.Tensor, alpha: float = 0.5):
    columns = linears[0].weight.abs().amax(dim=0)
    s = max_abs.clamp(min=1e-5) ** alpha / columns.clamp(min=1e-5) ** (1 - alpha)
    norm.weight /= s
    for linear in linears:
        linear.weight *= s
    return s
