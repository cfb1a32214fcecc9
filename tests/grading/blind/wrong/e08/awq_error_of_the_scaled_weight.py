# exercise: awq
# says: that is the change of W · s
# The change is Q(ws) - ws without the division by s, so the error is that of a weight which
# meets x / s, measured with the H of x.

import torch


def awq(w, mean_abs, h, bits: int, group: int, steps: int = 20):
    m = 2 ** (bits - 1) - 1
    width = w.shape[1]

    def nearest(v):
        tiles = torch.nn.functional.pad(v, (0, -width % group)).unflatten(1, (-1, group))
        scale = (tiles.abs().amax(dim=2, keepdim=True) / m).clamp(min=1e-30)
        return ((tiles / scale).round() * scale).flatten(1)[:, :width]

    x = mean_abs.clamp(min=1e-4)
    best, errors = None, []
    for k in range(steps):
        s = x ** (k / steps)
        s = s / (s.max() * s.min()).sqrt()
        change = nearest(w * s) - w * s
        error = ((change @ h) * change).sum().item()
        if not errors or error < min(errors):
            best = s
        errors.append(error)
    return best, errors
