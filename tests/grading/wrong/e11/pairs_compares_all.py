# exercise: candidate_pairs
# says: every document is compared with every other

import numpy as np


def candidate_pairs(signatures, bands, rows):
    live = (signatures != 2**32 - 1).any(axis=1)
    own = signatures[:, : bands * rows].reshape(len(signatures), bands, rows)
    pairs = []
    for j in range(len(own)):
        agree = (own[:j] == own[j]).all(axis=2).any(axis=1) & live[:j] & live[j]
        if agree.any():
            pairs.append((int(np.flatnonzero(agree)[0]), j))
    return pairs
