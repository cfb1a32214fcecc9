# exercise: warmup_cosine
# says: the cosine ends at the floor by itself
# the cosine goes from peak to 0 and is cut off at the floor with max, not scaled to end at it

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return floor
    t = (step - warmup) / (total - warmup)
    return max(floor, peak * (1 + math.cos(math.pi * t)) / 2)
