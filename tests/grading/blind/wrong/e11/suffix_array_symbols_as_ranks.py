# exercise: suffix_array
# says: Number the symbols without gaps first
# takes the symbols themselves for the first ranks; a symbol above n makes rank * (n + 1) + next
# ambiguous

import numpy as np


def suffix_array(symbols):
    n = len(symbols)
    rank = np.asarray(symbols).astype(np.int64)
    order = np.argsort(rank, kind="stable")
    k = 1
    while k < 2 * n:
        second = np.full(n, -1, np.int64)
        second[: max(n - k, 0)] = rank[k:]
        key = rank * (n + 1) + second + 1
        order = np.argsort(key, kind="stable")
        rank = np.unique(key, return_inverse=True)[1].astype(np.int64)
        if len(rank) and rank.max() == n - 1:
            break
        k *= 2
    return order.astype(np.int64)
