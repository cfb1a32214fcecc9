# exercise: normal_levels
# says: that goes from the outermost probability of 4 bits
# the outermost probability is that of 4 bits whatever bits is: right for NF4 only

import torch


def normal_levels(bits: int) -> torch.Tensor:
    half = 2 ** (bits - 1)
    out = 1 - (1 / 32 + 1 / 30) / 2
    p_above = torch.linspace(0.5, out, half + 1, dtype=torch.float64)
    p_below = torch.linspace(0.5, out, half, dtype=torch.float64)
    above = torch.special.ndtri(p_above)
    below = -torch.special.ndtri(p_below)[1:].flip(0)
    return (torch.cat([below, above]) / above[-1]).float()
