# exercise: normal_levels
# differs: plain Python with statistics.NormalDist and list comprehensions, probabilities below one
# half for the lower side, the list reversed instead of sorted
from statistics import NormalDist

import torch


def normal_levels(bits: int) -> torch.Tensor:
    shares = 2**bits
    tail = (1 / (2 * shares) + 1 / (2 * (shares - 1))) / 2  # 1 - p_out
    quantile = NormalDist().inv_cdf
    n_above, n_below = shares // 2, shares // 2 - 1
    largest = -quantile(tail)

    def side(steps):
        """From the outermost inwards, without the zero; all below zero."""
        step = (0.5 - tail) / steps
        return [quantile(tail + i * step) / largest for i in range(steps)]

    lower = side(n_below)
    upper = [-level for level in reversed(side(n_above))]
    return torch.tensor([*lower, 0.0, *upper], dtype=torch.float32)
