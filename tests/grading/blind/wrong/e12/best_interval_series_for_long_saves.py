# exercise: best_interval
# says: a save of three times the mean time between failures
# Uses the series for every save: where a save takes longer than 2 M the series does not hold,
# and the answer is M.

import math


def best_interval(save_seconds, chips, failures, chip_hours) -> float:
    if failures == 0:
        return math.inf
    between = 3600 * chip_hours / failures / chips
    x = math.sqrt(save_seconds / (2 * between))
    young = math.sqrt(2 * save_seconds * between)
    return young * (1 + x / 3 + x**2 / 9) - save_seconds
