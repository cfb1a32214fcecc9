# exercise: warmup_cosine
# says: step

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0):
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return floor
    return peak + (floor - peak) * (step - warmup) / (total - warmup)
