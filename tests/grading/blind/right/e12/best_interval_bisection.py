# right: bisects the derivative of the exact share, (1 - t) = exp(-(t + r)) with t = interval / M and r = save / M; no series.
import math


def best_interval(save_seconds: float, chips: int, failures: int, chip_hours: float) -> float:
    if not failures:
        return math.inf
    mean = chip_hours * 3600 / (failures * chips)
    ratio, low, high = save_seconds / mean, 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if -middle - math.expm1(-(middle + ratio)) > 0:
            low = middle
        else:
            high = middle
    return mean * (low + high) / 2
