# exercise: awq
# says: by h's diagonal alone
# the output error is taken with the diagonal of H only: inputs are treated as if they had
# nothing to do with one another

import torch


def awq(w, mean_abs, h, bits, group, steps=20):
    x = mean_abs.clamp(min=1e-4)
    best, errors = None, []
    for k in range(steps):
        s = x ** (k / steps)
        s = s / (s.max() * s.min()).sqrt()
        codes, scale = quantize_absmax(w * s, bits, group)
        wide = scale.repeat_interleave(group, dim=1)[:, : w.shape[1]]
        change = codes * wide / s - w
        error = (change**2 * h.diagonal()).sum().item()
        if not errors or error < min(errors):
            best = s
        errors.append(error)
    return best, errors
