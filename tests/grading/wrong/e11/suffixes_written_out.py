# exercise: suffix_array
# says: suffixes were written out | suffixes are compared as a whole

import numpy as np


def suffix_array(symbols):
    symbols = np.asarray(symbols)
    ranks = np.unique(symbols, return_inverse=True)[1]
    text = ranks.astype(">u4").tobytes()
    order = sorted(range(len(symbols)), key=lambda start: text[4 * start :])
    return np.array(order, dtype=np.int64)
