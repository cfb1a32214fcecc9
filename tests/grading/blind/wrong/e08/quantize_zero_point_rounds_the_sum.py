# exercise: quantize_zero_point
# says: w - smallest was rounded
# Codes are round((w - min) / s), the zero point is rounded apart: errors reach a whole step
# instead of half a step.

import torch


def quantize_zero_point(w: torch.Tensor, bits: int, group: int):
    n = 2**bits - 1
    width = w.shape[1]
    tiles = torch.nn.functional.pad(w, (0, -width % group)).unflatten(1, (-1, group))
    low = tiles.amin(dim=2).clamp(max=0)
    high = tiles.amax(dim=2).clamp(min=0)
    scale = ((high - low) / n).clamp(min=torch.finfo(w.dtype).tiny)
    zero = (-low / scale).round().clamp(0, n)
    codes = ((tiles - low[:, :, None]) / scale[:, :, None]).round().clamp(0, n)
    return codes.flatten(1)[:, :width].to(torch.uint8), scale, zero.to(torch.uint8)
