# exercise: minhash
# says: in every function the page's smallest shingle has won
# computes a x + b in uint64 without the modulus, takes the smallest and only then cuts it to 32
# bits

import numpy as np


def minhash(hashes, bounds, a, b):
    out = np.full((len(bounds) - 1, len(a)), 2**32 - 1, np.uint32)
    wide = hashes.astype(np.uint64)
    for i in range(len(bounds) - 1):
        page = wide[bounds[i] : bounds[i + 1]]
        if len(page):
            values = page[:, None] * a.astype(np.uint64) + b.astype(np.uint64)
            out[i] = values.min(axis=0).astype(np.uint32)
    return out
