# exercise: normal_levels
# says: each side goes to an end of its own
# each side goes to an outermost probability of its own (16 shares above, 15 below) and is
# divided by its own largest, instead of the mean of the two for both

import torch


def normal_levels(bits: int) -> torch.Tensor:
    n, half = 2**bits, 2 ** (bits - 1)
    p_above = torch.linspace(0.5, 1 - 1 / (2 * n), half + 1, dtype=torch.float64)
    p_below = torch.linspace(0.5, 1 - 1 / (2 * (n - 1)), half, dtype=torch.float64)
    above = torch.special.ndtri(p_above)
    below = -torch.special.ndtri(p_below)[1:].flip(0)
    return torch.cat([below / -below[0], above / above[-1]]).float()
