# exercise: suffix_array
# says: behind the end lies nothing
# behind the end stands rank 0, which is also the rank of the lowest symbol: "a" and "aa" stay
# equal and keep the order of the text

import numpy as np


def suffix_array(symbols):
    n = len(symbols)
    if n == 0:
        return np.zeros(0, np.int64)
    rank = np.unique(np.asarray(symbols), return_inverse=True)[1].astype(np.int64)
    k = 1
    while k < 2 * n:
        second = np.zeros(n, np.int64)
        second[: max(n - k, 0)] = rank[k:]
        rank = np.unique(rank * n + second, return_inverse=True)[1].astype(np.int64)
        k *= 2
    return np.argsort(rank, kind="stable").astype(np.int64)
