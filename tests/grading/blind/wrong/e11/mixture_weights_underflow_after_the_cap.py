# exercise: mixture_weights
# says: elements differ
# powers are taken relative to the largest source only once; at a small temperature the others
# underflow to 0, and when the largest is capped, 0 / 0 is shared among them (nan)

import numpy as np


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    n = np.array(sizes, dtype=np.float64)
    if most_passes * n.sum() < budget:
        raise ValueError("the budget needs more passes than are allowed")
    power = (n / n.max()) ** (1 / temperature)
    cap = most_passes * n / budget
    capped = np.zeros(len(n), bool)
    while True:
        p = np.where(capped, cap, 0.0)
        if capped.all():
            return p.tolist()
        p[~capped] = (1 - p.sum()) * power[~capped] / power[~capped].sum()
        over = ~capped & (p > cap)
        if not over.any():
            return p.tolist()
        capped |= over
