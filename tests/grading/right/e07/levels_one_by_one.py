from statistics import NormalDist

import torch


def normal_levels(bits):
    """Each level from its own probability, in plain Python."""
    k = 2**bits
    tail = (1 / (2 * k) + 1 / (2 * (k - 1))) / 2
    quantile = NormalDist().inv_cdf
    top = quantile(1 - tail)

    def side(count):
        step = (0.5 - tail) / count
        return [quantile(1 - tail - step * i) / top for i in range(count)]

    numbers = [-q for q in side(k // 2 - 1)] + [0.0] + side(k // 2)[::-1]
    return torch.tensor(numbers)
