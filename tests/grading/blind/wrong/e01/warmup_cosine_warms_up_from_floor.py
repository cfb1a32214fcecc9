# exercise: warmup_cosine
# says: the rise does not begin at the floor
# The warmup rises from the floor instead of from 0, right only for floor = 0; "Step 0 has peak
# / warmup".

import math


def warmup_cosine(step, total, warmup, peak, floor=0.0) -> float:
    if step < warmup:
        return floor + (peak - floor) * (step + 1) / warmup
    if step >= total:
        return floor
    t = (step - warmup) / (total - warmup)
    return floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2
