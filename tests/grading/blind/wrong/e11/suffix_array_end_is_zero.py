# exercise: suffix_array
# says: behind the end lies nothing
# behind the end of the text stands rank 0, the same as the lowest symbol's rank, instead of
# something lower

import numpy as np


def suffix_array(symbols):
    n = len(symbols)
    if n == 0:
        return np.zeros(0, np.int64)
    rank = np.unique(symbols, return_inverse=True)[1].astype(np.int64)
    order = np.argsort(rank, kind="stable")
    k = 1
    while k < n and rank.max() < n - 1:
        second = np.zeros(n, np.int64)
        second[:-k] = rank[k:]
        key = rank * n + second
        order = np.argsort(key, kind="stable")
        rank = np.unique(key, return_inverse=True)[1].astype(np.int64)
        k *= 2
    return order.astype(np.int64)
