# exercise: quantize_zero_point
# says: w/s and z may both round up
# No clamp of the codes: where max = -min both halves round up and the largest weight gets the
# code 2^bits (for 8 bits it wraps to 0).

import torch


def quantize_zero_point(w: torch.Tensor, bits: int, group: int):
    n = 2**bits - 1
    width = w.shape[1]
    tiles = torch.nn.functional.pad(w, (0, -width % group)).unflatten(1, (-1, group))
    low = tiles.amin(dim=2).clamp(max=0)
    high = tiles.amax(dim=2).clamp(min=0)
    scale = ((high - low) / n).clamp(min=torch.finfo(w.dtype).tiny)
    zero = (-low / scale).round()
    codes = (tiles / scale[:, :, None]).round() + zero[:, :, None]
    return codes.flatten(1)[:, :width].to(torch.uint8), scale, zero.to(torch.uint8)
