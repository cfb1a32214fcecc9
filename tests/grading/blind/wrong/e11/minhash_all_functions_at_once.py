# exercise: minhash
# says: and keep of each the smallest values
# holds all K values of all shingles at once, an array (S, K), which the text forbids (the
# values are right)

import numpy as np


def minhash(hashes, bounds, a, b):
    values = hashes[:, None] * a[None, :] + b[None, :]
    out = np.full((len(bounds) - 1, len(a)), 2**32 - 1, np.uint32)
    for i, (start, stop) in enumerate(zip(bounds[:-1], bounds[1:])):
        if stop > start:
            out[i] = values[start:stop].min(axis=0)
    return out
