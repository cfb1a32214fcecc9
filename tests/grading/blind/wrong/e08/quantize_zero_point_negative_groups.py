# exercise: quantize_zero_point
# says: elements differ
# Widens the range to 0 at the low side only: a group of negative weights only keeps max < 0,
# its zero point is beyond the codes and is cut.

import torch


def quantize_zero_point(w: torch.Tensor, bits: int, group: int):
    n = 2**bits - 1
    codes, scales, zeros = [], [], []
    for tile in w.split(group, dim=1):
        low = tile.amin(dim=1, keepdim=True).clamp(max=0)
        high = tile.amax(dim=1, keepdim=True)
        scale = ((high - low) / n).clamp(min=1e-30)
        zero = (-low / scale).round().clamp(0, n)
        codes.append(((tile / scale).round() + zero).clamp(0, n).to(torch.uint8))
        scales.append(scale)
        zeros.append(zero.to(torch.uint8))
    return torch.cat(codes, 1), torch.cat(scales, 1), torch.cat(zeros, 1)
