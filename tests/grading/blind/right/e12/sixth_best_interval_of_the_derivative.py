# exercise: best_interval
# no series: the derivative is zero where tau / M = 1 - exp(-(tau + delta) / M), found by halving an
# interval
import math


def best_interval(
    save_seconds: float, chips: int, failures: int, chip_hours: float
) -> float:
    if not failures:
        return math.inf
    between = 3600.0 * chip_hours / (failures * chips)
    save = save_seconds / between
    # 1 - exp(-(t + save)) - t is positive below the maximum and negative above it
    low, high = 0.0, 1.0
    for _ in range(200):
        t = (low + high) / 2
        if -math.expm1(-(t + save)) > t:
            low = t
        else:
            high = t
    return between * (low + high) / 2
