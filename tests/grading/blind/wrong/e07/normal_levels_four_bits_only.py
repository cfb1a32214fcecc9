# exercise: normal_levels
# says: from the outermost probability of 4 bits
# the outermost probability of 4 bits (1/32 and 1/30) is used for every number of bits

import torch


def normal_levels(bits: int) -> torch.Tensor:
    p_out = 1 - (1 / 32 + 1 / 30) / 2
    half = 2 ** (bits - 1)
    positive = torch.special.ndtri(torch.linspace(p_out, 0.5, half + 1))[:-1]
    negative = torch.special.ndtri(torch.linspace(1 - p_out, 0.5, half))[:-1]
    levels = torch.cat([negative, torch.zeros(1), positive.flip(0)])
    return levels / levels[-1]
