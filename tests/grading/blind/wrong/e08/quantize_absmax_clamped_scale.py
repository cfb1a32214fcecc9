# exercise: quantize_absmax
# says: only a group of zeros needs one
# guards against zero groups by scale.clamp(min=1e-5): groups of small weights get a far too
# wide step

import torch
import torch.nn.functional as F_


def quantize_absmax(w: torch.Tensor, bits: int, group: int):
    F, D = w.shape
    m = 2 ** (bits - 1) - 1
    group = min(group, D)
    G = (D + group - 1) // group
    x = F_.pad(w, (0, G * group - D)).reshape(F, G, group)
    scale = (x.abs().amax(dim=-1) / m).clamp(min=1e-5)
    codes = torch.round(x / scale.unsqueeze(-1)).clamp(-m, m)
    return codes.reshape(F, -1)[:, :D].to(torch.int8), scale
