# exercise: candidate_pairs
# says: Pair each with the *first* of its bucket
# in a bucket each page is paired with the one before it, not with the bucket's first (the union
# is the same, the pairs are not)

import numpy as np


def candidate_pairs(signatures, bands: int, rows: int) -> list:
    empty = (signatures == np.uint32(2**32 - 1)).all(axis=1)
    pairs = set()
    for k in range(bands):
        last = {}
        for i, row in enumerate(signatures[:, k * rows : (k + 1) * rows]):
            if empty[i]:
                continue
            key = row.tobytes()
            if key in last:
                pairs.add((last[key], i))
            last[key] = i
    return sorted(pairs)
