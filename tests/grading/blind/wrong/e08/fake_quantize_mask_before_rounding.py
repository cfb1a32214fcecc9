# exercise: fake_quantize
# says: up to m + 1/2 a weight is rounded to code m
# The mask asks |w / s| <= m of the unrounded weight: what lies between m and m + 1/2 is not
# clamped, and yet loses its gradient.

import torch


def fake_quantize(w: torch.Tensor, scale: torch.Tensor, bits: int) -> torch.Tensor:
    m = 2 ** (bits - 1) - 1
    steps = (w / scale).detach()
    through = torch.where(steps.abs() <= m, w, w.detach())
    rounded = steps.round().clamp(-m, m) * scale.detach()
    return rounded + (through - through.detach())
