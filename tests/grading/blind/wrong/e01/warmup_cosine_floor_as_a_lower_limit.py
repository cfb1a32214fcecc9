# exercise: warmup_cosine
# says: the cosine ends at the floor by itself
# lets the cosine fall to zero and cuts it off at the floor with max(), right for floor = 0
# only, but the docstring says "floor + (peak - floor)·(1 + cos πt)/2".

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step >= total:
        return floor
    if step < warmup:
        return peak * (step + 1) / warmup
    t = (step - warmup) / (total - warmup)
    return max(floor, peak * (1 + math.cos(math.pi * t)) / 2)
