# exercise: best_interval
# says: 3600 to an hour
# M stays in hours while the save is in seconds

import math


def best_interval(save_seconds, chips, failures, chip_hours):
    if failures == 0:
        return math.inf
    between = chip_hours / (failures * chips)
    if save_seconds >= 2 * between:
        return between
    x = math.sqrt(save_seconds / (2 * between))
    young = math.sqrt(2 * save_seconds * between)
    return young * (1 + x / 3 + x**2 / 9) - save_seconds
