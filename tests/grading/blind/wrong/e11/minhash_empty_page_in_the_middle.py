# exercise: minhash
# says: `np.minimum.reduceat` gives such a document its neighbour's value
# a 2^32 - 1 behind the end saves empty pages at the end, but reduceat gives an empty page in
# the middle the first value of the next page

import numpy as np


def minhash(hashes, bounds, a, b):
    out = np.empty((len(bounds) - 1, len(a)), np.uint32)
    for k in range(len(a)):
        values = hashes * a[k] + b[k]
        values = np.append(values, np.uint32(2**32 - 1))
        out[:, k] = np.minimum.reduceat(values, bounds[:-1])
    return out
