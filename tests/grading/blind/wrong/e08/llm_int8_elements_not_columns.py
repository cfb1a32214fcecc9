# exercise: llm_int8
# says: a column is taken out whole
# Takes single elements out that reach the threshold, not their whole columns: the small entries
# of an outlier column are still rounded.

import torch


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    large = x.abs() >= threshold
    regular = x.masked_fill(large, 0)
    x_scale = (regular.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-30)
    x_codes = (regular / x_scale).round().to(torch.int8)
    y = multiply(x_codes, codes) * x_scale * scale.t()
    return y + (x - regular) @ (codes * scale).t()
