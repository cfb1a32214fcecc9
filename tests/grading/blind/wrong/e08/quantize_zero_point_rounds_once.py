# exercise: quantize_zero_point
# says: and the whole number `zero` added
# q = round((w - min) / s): rounds the sum, not w/s and z apart, so that codes are off by one

import torch


def quantize_zero_point(w: torch.Tensor, bits: int, group: int):
    D = w.shape[1]
    n = 2**bits - 1
    codes, scales, zeros = [], [], []
    for start in range(0, D, group):
        part = w[:, start : start + group]
        low = part.amin(1, keepdim=True).clamp(max=0)
        high = part.amax(1, keepdim=True).clamp(min=0)
        s = (high - low) / n
        s = torch.where(s == 0, torch.ones_like(s), s)
        z = torch.round(-low / s)
        codes.append(torch.round((part - low) / s).clamp(0, n))
        scales.append(s)
        zeros.append(z)
    codes = torch.cat(codes, 1).to(torch.uint8)
    return codes, torch.cat(scales, 1), torch.cat(zeros, 1).to(torch.uint8)
