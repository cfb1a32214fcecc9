# exercise: warmup_cosine
# says: step `warmup` is above the peak
# `step <= warmup` still rises at step `warmup`, above the peak; "step warmup - 1 the peak; from
# `warmup` on" the cosine.

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step <= warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return floor
    t = (step - warmup) / (total - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2
