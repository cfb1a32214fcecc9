# exercise: llm_int8
# says: a column whose largest magnitude is the threshold itself reaches it
# > instead of >=: a column whose largest |x| is exactly the threshold is not taken out

import torch


def llm_int8(x, codes, scale, multiply, threshold=6.0):
    outlier = (x.abs() > threshold).any(dim=0)
    rest = torch.where(outlier, torch.zeros_like(x), x)
    s = rest.abs().amax(dim=1, keepdim=True) / 127
    s = torch.where(s == 0, torch.ones_like(s), s)
    q = torch.round(rest / s).clamp(-127, 127).to(torch.int8)
    y = multiply(q, codes).float() * s * scale.reshape(1, -1)
    w = codes[:, outlier].float() * scale
    return y + x[:, outlier] @ w.t()
