# right: bisection for the zero of the exact derivative: t = M (1 - exp(-(t + save) / M))
import math


def best_interval(save_seconds, chips, failures, chip_hours):
    if not failures:
        return math.inf
    mean = chip_hours * 3600.0 / chips / failures
    low, high = 0.0, mean
    for _ in range(200):
        middle = (low + high) / 2
        if middle + mean * math.expm1(-(middle + save_seconds) / mean) < 0:
            low = middle
        else:
            high = middle
    return (low + high) / 2
