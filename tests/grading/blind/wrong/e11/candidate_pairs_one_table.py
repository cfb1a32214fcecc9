# exercise: candidate_pairs
# says: each band has buckets of its own
# one table of buckets for all bands, so band 0 of one page meets band 3 of another if the
# values are equal

import numpy as np


def candidate_pairs(signatures, bands: int, rows: int) -> list:
    buckets, pairs = {}, set()
    for k in range(bands):
        for i, signature in enumerate(signatures):
            if (signature == 2**32 - 1).all():
                continue
            key = tuple(signature[k * rows : (k + 1) * rows].tolist())
            first = buckets.setdefault(key, i)
            if first != i:
                pairs.add((min(first, i), max(first, i)))
    return list(pairs)
