# exercise: warmup_cosine
# says: the cosine ends at the floor by itself
# The cosine falls from the peak to 0 and is cut off at the floor, instead of falling to the
# floor.

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return floor
    t = (step - warmup) / (total - warmup)
    return max(floor, peak * (1 + math.cos(math.pi * t)) / 2)
