# exercise: llm_int8
# says: take the largest magnitude of each token *without* them
# A token's scale is taken before the outlier columns are removed, so the outliers still make
# the steps coarse for the others.

import torch


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    outlier = x.abs().amax(dim=0) >= threshold
    x_scale = (x.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-30)
    regular = x.masked_fill(outlier, 0)
    x_codes = (regular / x_scale).round().to(torch.int8)
    y = multiply(x_codes, codes) * x_scale * scale.t()
    return y + x[:, outlier] @ (codes[:, outlier] * scale).t()
