# exercise: minhash
# says: behind the end
# np.minimum.reduceat over all bounds: an empty page gets the first value of the next page (and
# the last page, if empty, is an error)

import numpy as np


def minhash(hashes, bounds, a, b):
    out = np.empty((len(bounds) - 1, len(a)), np.uint32)
    for k in range(len(a)):
        out[:, k] = np.minimum.reduceat(hashes * a[k] + b[k], bounds[:-1])
    return out
