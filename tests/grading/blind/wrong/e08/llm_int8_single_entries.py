# exercise: llm_int8
# says: the large numbers alone were taken out
# single entries that reach the threshold are taken out, not the whole columns in which one does

import torch


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    outlier = x.abs() >= threshold
    rest = x.masked_fill(outlier, 0)
    s = rest.abs().amax(1, keepdim=True).clamp(min=1e-12) / 127
    q = (rest / s).round().clamp(-127, 127).to(torch.int8)
    y = multiply(q, codes).float() * s * scale.view(1, -1)
    return y + (x - rest) @ (codes.float() * scale).t()
