# exercise: quantize_absmax
# says: only a group of zeros needs one
# the scale itself is clamped to at least 1e-5, so groups of tiny (but not zero) weights get far
# too coarse a scale

import torch


def quantize_absmax(w, bits, group):
    F, D = w.shape
    m = 2 ** (bits - 1) - 1
    group = min(group, D)
    pad = -D % group
    x = torch.nn.functional.pad(w, (0, pad)).view(F, -1, group)
    scale = x.abs().amax(-1) / m
    scale = scale.clamp(min=1e-5)
    codes = (x / scale[..., None]).round().clamp(-m, m)
    return codes.view(F, -1)[:, :D].to(torch.int8), scale
