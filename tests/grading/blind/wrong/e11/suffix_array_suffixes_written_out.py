# exercise: suffix_array
# says: each round sorts by twice as many symbols as the one before
# sorts the suffixes written out, n^2 / 2 numbers: "No suffix is written out" (the order is
# right)

import numpy as np


def suffix_array(symbols):
    text = np.asarray(symbols).tolist()
    order = sorted(range(len(text)), key=lambda i: text[i:])
    return np.array(order, dtype=np.int64)
