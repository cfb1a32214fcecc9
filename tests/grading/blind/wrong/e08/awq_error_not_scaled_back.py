# exercise: awq
# says: divide it by s again
# the error is Q(w s) - w s, in the scaled weights: the division by s is forgotten

import torch


def awq(w, mean_abs, h, bits: int, group: int, steps: int = 20):
    x = mean_abs.clamp(min=1e-4)
    best, least, errors = None, float("inf"), []
    for k in range(steps):
        power = x ** (k / steps)
        s = power / (power.max() * power.min()).sqrt()
        codes, scale = quantize_absmax(w * s, bits, group)
        delta = dequantize(codes, scale, group) - w * s
        error = torch.trace(delta @ h @ delta.t()).item()
        errors.append(error)
        if error < least:
            best, least = s, error
    return best, errors
