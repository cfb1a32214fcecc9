# exercise: best_interval
# says: a save of three times the mean time between failures
# uses the series for every save, also for save_seconds >= 2M, where it is far from the maximum
# (half of it at 8M) and the text says M.

import math


def best_interval(save_seconds: float, chips: int, failures: int, chip_hours: float) -> float:
    if failures == 0:
        return math.inf
    between = 3600 * chip_hours / failures / chips
    x = math.sqrt(save_seconds / (2 * between))
    return math.sqrt(2 * save_seconds * between) * (1 + x / 3 + x * x / 9) - save_seconds
