import math


def warmup_cosine(step, total, warmup, peak, floor=0.0):
    """The lower of the rising line and the falling wave, once t is kept within 0 and 1."""
    rising = (step + 1) / warmup if step < warmup else 1.0
    t = min(1.0, max(0.0, (step - warmup) / (total - warmup)))
    if step < warmup:
        return peak * rising
    return floor + (peak - floor) * math.cos(math.pi * t / 2) ** 2
