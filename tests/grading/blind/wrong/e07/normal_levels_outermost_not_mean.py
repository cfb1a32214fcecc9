# exercise: normal_levels
# says: the outermost probability is the mean of two
# the outermost probability of 2^b shares on both sides, not the mean of that of 2^b and of 2^b
# - 1 shares

import torch


def normal_levels(bits: int) -> torch.Tensor:
    p_out = 1 - 1 / (2 * 2**bits)
    n = 2 ** (bits - 1)
    above = torch.special.ndtri(torch.linspace(p_out, 0.5, n + 1)[:-1])
    below = -torch.special.ndtri(torch.linspace(p_out, 0.5, n)[:-1])
    levels = torch.cat([above, below, torch.zeros(1)]).sort().values
    return levels / levels.max()
