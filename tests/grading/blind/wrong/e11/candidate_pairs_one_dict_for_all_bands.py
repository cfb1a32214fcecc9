# exercise: candidate_pairs
# says: each band has buckets of its own
# all bands share their buckets, so a band of one page meets another band of another page (and a
# page may meet itself: that is left out)

import numpy as np


def candidate_pairs(signatures, bands: int, rows: int) -> list:
    empty = (signatures == np.uint32(2**32 - 1)).all(axis=1)
    first, pairs = {}, set()
    for i in np.flatnonzero(~empty).tolist():
        for k in range(bands):
            key = tuple(signatures[i, k * rows : (k + 1) * rows].tolist())
            head = first.setdefault(key, i)
            if head != i:
                pairs.add((head, i))
    return list(pairs)
