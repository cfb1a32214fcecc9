# exercise: warmup_cosine
# says: the mean of peak and floor | at `total` the rate is the floor

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0):
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return floor
    t = (step - warmup) / (total - warmup)
    return peak * (1 + math.cos(math.pi * t)) / 2
