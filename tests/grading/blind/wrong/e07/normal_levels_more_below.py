# exercise: normal_levels
# says: 8 levels below zero and 7 above
# the sides are swapped: one more level below zero than above

import torch


def normal_levels(bits: int) -> torch.Tensor:
    p_out = 1 - 0.5 * (1 / (2 * 2**bits) + 1 / (2 * (2**bits - 1)))
    n = 2 ** (bits - 1)
    above = torch.special.ndtri(torch.linspace(0.5, p_out, n)[1:])
    below = -torch.special.ndtri(torch.linspace(p_out, 0.5, n + 1)[:-1])
    return torch.cat([below, torch.zeros(1), above]) / above[-1]
