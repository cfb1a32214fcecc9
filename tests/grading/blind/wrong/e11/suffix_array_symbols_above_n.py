# exercise: suffix_array
# says: Number the symbols without gaps first
# the factor of the pair is n + 1 although the first "ranks" are the symbols themselves, which
# may be larger than n: pairs collide or are ordered wrongly

import numpy as np


def suffix_array(symbols):
    n = len(symbols)
    if n == 0:
        return np.zeros(0, np.int64)
    rank, k = np.asarray(symbols).astype(np.int64), 1
    while True:
        second = np.zeros(n, np.int64)
        second[: max(n - k, 0)] = rank[k:] + 1
        key = rank * (n + 1) + second
        order = np.argsort(key, kind="stable")
        new = np.zeros(n, np.int64)
        new[order[1:]] = np.cumsum(np.diff(key[order]) != 0)
        rank, k = new, 2 * k
        if rank.max() == n - 1 or k >= 2 * n:
            return order.astype(np.int64)
