# exercise: mixture_weights
# says: that lifts the capped ones above their cap again
# after each round the shares are clipped and all (the capped too) are normalised again, once

import numpy as np


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    sizes = np.asarray(sizes, dtype=np.float64)
    caps = most_passes * sizes / budget
    if caps.sum() < 1:
        raise ValueError("the sources are too small for this budget")
    logs = np.log(sizes) / temperature
    raw = np.exp(logs - logs.max())
    p = raw / raw.sum()
    p = np.minimum(p, caps)
    return (p / p.sum()).tolist()
