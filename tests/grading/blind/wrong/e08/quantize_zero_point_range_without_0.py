# exercise: quantize_zero_point
# says: the range must hold 0, or 0 has no code
# the range is not widened to hold 0: groups of one sign get a zero point outside 0..n

import torch


def quantize_zero_point(w: torch.Tensor, bits: int, group: int):
    D = w.shape[1]
    n = 2**bits - 1
    codes, scales, zeros = [], [], []
    for start in range(0, D, group):
        part = w[:, start : start + group]
        low, high = part.amin(1, keepdim=True), part.amax(1, keepdim=True)
        s = (high - low) / n
        s = torch.where(s == 0, torch.ones_like(s), s)
        z = torch.round(-low / s)
        codes.append((torch.round(part / s) + z).clamp(0, n))
        scales.append(s)
        zeros.append(z)
    codes = torch.cat(codes, 1).to(torch.uint8)
    return codes, torch.cat(scales, 1), torch.cat(zeros, 1).to(torch.uint8)
