# right: in plain Python with statistics.NormalDist, level by level
from statistics import NormalDist

import torch


def normal_levels(bits: int) -> torch.Tensor:
    count = 2**bits
    outermost = 1 - (1 / (2 * count) + 1 / (2 * (count - 1))) / 2
    quantile = NormalDist().inv_cdf

    def side(steps):
        # from the middle (left out) to the outermost probability
        return [
            quantile(0.5 + (outermost - 0.5) * step / steps)
            for step in range(1, steps + 1)
        ]

    above, below = side(count // 2), side(count // 2 - 1)
    values = [-value for value in reversed(below)] + [0.0] + above
    return torch.tensor([value / above[-1] for value in values], dtype=torch.float32)
