# exercise: mixture_weights
# says: look again until none is
# caps one time and gives the rest to the others, but does not look whether that lifts another
# one above its cap

import math


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    if most_passes * sum(sizes) < budget:
        raise ValueError("the sources are too small for this budget")
    logs = [math.log(n) / temperature for n in sizes]
    top = max(logs)
    powers = [math.exp(x - top) for x in logs]
    caps = [most_passes * n / budget for n in sizes]
    total = sum(powers)
    over = [p / total > c for p, c in zip(powers, caps)]
    rest = 1 - sum(c for c, o in zip(caps, over) if o)
    free = sum(p for p, o in zip(powers, over) if not o)
    return [c if o else rest * p / free for p, c, o in zip(powers, caps, over)]
