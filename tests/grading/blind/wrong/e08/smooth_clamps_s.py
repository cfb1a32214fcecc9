# exercise: smooth
# says: from below, before the powers
# the clamp to 1e-5 is put on s at the end, not on the two magnitudes: a column of zeros in W
# makes s infinite, a silent channel gets 1e-5

import torch


@torch.no_grad()
def smooth(norm, linears, max_abs, alpha=0.5):
    largest = torch.stack([m.weight.abs().amax(0) for m in linears]).amax(0)
    s = (max_abs**alpha / largest ** (1 - alpha)).clamp(min=1e-5)
    norm.weight.div_(s)
    for m in linears:
        m.weight.mul_(s)
    return s
