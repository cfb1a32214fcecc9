# exercise: warmup_cosine
# says: the first step already moves

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0):
    if step < warmup:
        return peak * step / warmup
    if step >= total:
        return floor
    t = (step - warmup) / (total - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2
