# exercise: quantize_absmax
# says: round to the nearest
# int8 conversion truncates towards zero: the codes are never rounded

import torch
import torch.nn.functional as F_


def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    F, D = w.shape
    m = 2 ** (bits - 1) - 1
    group = min(group, D)
    G = (D + group - 1) // group
    x = F_.pad(w, (0, G * group - D)).reshape(F, G, group)
    scale = x.abs().amax(dim=-1) / m
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    codes = (x / scale.unsqueeze(-1)).to(torch.int8)
    return codes.reshape(F, -1)[:, :D], scale
