# exercise: warmup_cosine
# says: the cosine starts at the peak

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0):
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return floor
    return floor + (peak - floor) * (1 + math.cos(math.pi * step / total)) / 2
