# exercise: warmup_cosine
# says: the cosine must not come up again

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0):
    if step < warmup:
        return peak * (step + 1) / warmup
    t = (step - warmup) / (total - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2
