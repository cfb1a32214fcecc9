# exercise: slow_ranks
# says: by the standard deviation
# says: as above: a slow rank moves the standard deviation
# The standard deviation over ranks in place of the median one: a slow rank moves it, and hides in
# it.

import torch


def slow_ranks(times, factor=1.1):
    compute = (times[:, :, 1] - times[:, :, 0]).median(dim=1).values
    middle = compute.median()
    spread = compute.std()
    bound = max(factor * middle, middle + 5 * spread)
    return [r for r, c in enumerate(compute) if c > bound]
