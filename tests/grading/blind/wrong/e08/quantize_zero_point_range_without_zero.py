# exercise: quantize_zero_point
# says: the range must hold 0
# says: is all negative | is all positive
# the range is not widened to hold 0: groups of one sign use min..max as they are, and the zero
# point is merely clamped

import torch


def quantize_zero_point(w, bits, group):
    F, D = w.shape
    n = 2**bits - 1
    pieces = w.split(group, dim=1)
    codes, scales, zeros = [], [], []
    for x in pieces:
        low = x.amin(1, keepdim=True)
        high = x.amax(1, keepdim=True)
        s = (high - low) / n
        s = torch.where(s > 0, s, torch.ones_like(s))
        z = (-low / s).round().clamp(0, n)
        codes.append(((x / s).round() + z).clamp(0, n))
        scales.append(s)
        zeros.append(z)
    return (
        torch.cat(codes, 1).to(torch.uint8),
        torch.cat(scales, 1),
        torch.cat(zeros, 1).to(torch.uint8),
    )
