# exercise: warmup_cosine
# says: the cosine reaches the floor one step early
# lets t reach 1 at step total - 1 (divides by total - 1 - warmup), so the floor comes one step
# early and every step of the cosine is a little low, but the text says "half a cosine down to
# the floor at `total`".

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step >= total:
        return floor
    if step < warmup:
        return peak * (step + 1) / warmup
    t = (step - warmup) / max(1, total - 1 - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2
