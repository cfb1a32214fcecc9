# exercise: normal_levels
# how it differs: Python's NormalDist and plain lists, the lower side from its own probabilities
# under one half, zero in its place without a sort
from statistics import NormalDist

import torch


def normal_levels(bits: int) -> torch.Tensor:
    half = 2 ** (bits - 1)
    p = 1 - 0.5 * (1 / (4 * half) + 1 / (4 * half - 2))
    q = NormalDist().inv_cdf
    most = q(p)
    low = [-q(p + (0.5 - p) * k / (half - 1)) / most for k in range(half - 1)]
    high = [q(0.5 + (p - 0.5) * k / half) / most for k in range(1, half + 1)]
    high[-1] = 1.0
    return torch.tensor([*low, 0.0, *high], dtype=torch.float32)
