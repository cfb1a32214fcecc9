# exercise: best_interval
# no series: bisection for the exact maximum, where 1 - t = exp(-(t + d)) with t and d in units of
# M
import math


def best_interval(
    save_seconds: float, chips: int, failures: int, chip_hours: float
) -> float:
    if not failures:
        return math.inf
    between = 3600.0 * chip_hours / failures / chips
    d = save_seconds / between
    low, high = 0.0, 1.0
    for _ in range(200):
        t = (low + high) / 2
        if t + math.expm1(-(t + d)) < 0:
            low = t
        else:
            high = t
    return between * (low + high) / 2
