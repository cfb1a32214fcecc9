# exercise: llm_int8
# says: is the threshold itself reaches it
# Strictly above the threshold: a column whose largest |x| is exactly the threshold is not taken
# out, although it reaches it.

import torch


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    outlier = (x.abs() > threshold).any(dim=0)
    regular = torch.where(outlier, 0.0, x)
    x_scale = (regular.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-30)
    x_codes = (regular / x_scale).round().to(torch.int8)
    y = multiply(x_codes, codes) * x_scale * scale.t()
    return y + x[:, outlier] @ (codes[:, outlier] * scale).t()
