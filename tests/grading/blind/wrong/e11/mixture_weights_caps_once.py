# exercise: mixture_weights
# says: look again until none is
# caps only once; what is given up may lift another source above its own cap

import numpy as np


def mixture_weights(sizes, temperature, budget, most_passes=4.0) -> list:
    sizes = np.asarray(sizes, dtype=np.float64)
    caps = most_passes * sizes / budget
    if caps.sum() < 1:
        raise ValueError("the sources are too small for this budget")
    logs = np.log(sizes) / temperature
    raw = np.exp(logs - logs.max())
    p = raw / raw.sum()
    over = p > caps
    if over.any():
        p[over] = caps[over]
        p[~over] = raw[~over] / raw[~over].sum() * (1 - caps[over].sum())
    return p.tolist()
