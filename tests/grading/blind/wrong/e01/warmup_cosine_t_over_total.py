# exercise: warmup_cosine
# says: the cosine starts at the peak | the cosine reaches the floor
# t = step / total, the warm-up is not taken off

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    if step >= total:
        return floor
    t = step / total
    return floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2
