# exercise: candidate_pairs
# differs: no dict: np.unique over the rows of a band finds each bucket's first page, and all pairs
# of the band come at once
import numpy as np


def candidate_pairs(signatures, bands: int, rows: int) -> list:
    alive = np.flatnonzero((signatures != np.uint32(2**32 - 1)).any(axis=1))
    if len(alive) == 0:
        return []
    found = set()
    for start in range(0, bands * rows, rows):
        block = signatures[alive, start : start + rows]
        _, first, bucket = np.unique(
            block, axis=0, return_index=True, return_inverse=True
        )
        lowest = first[bucket.reshape(-1)]
        later = np.flatnonzero(lowest != np.arange(len(alive)))
        found.update(zip(alive[lowest[later]].tolist(), alive[later].tolist()))
    return sorted(found)
