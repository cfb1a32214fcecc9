# exercise: quantize_zero_point
# says: and the whole number `zero` added
# the code is round((w - min) / s), without the rounded zero point: off by one from round(w / s)
# + z for many weights

import torch


def quantize_zero_point(w, bits, group):
    F, D = w.shape
    n = 2**bits - 1
    pieces = w.split(group, dim=1)
    codes, scales, zeros = [], [], []
    for x in pieces:
        low = x.amin(1, keepdim=True).clamp(max=0)
        high = x.amax(1, keepdim=True).clamp(min=0)
        s = (high - low) / n
        s = torch.where(s > 0, s, torch.ones_like(s))
        z = (-low / s).round().clamp(0, n)
        codes.append(((x - low) / s).round().clamp(0, n))
        scales.append(s)
        zeros.append(z)
    return (
        torch.cat(codes, 1).to(torch.uint8),
        torch.cat(scales, 1),
        torch.cat(zeros, 1).to(torch.uint8),
    )
