# right: prefix doubling with np.unique for the first ranks and np.lexsort over the pair instead of one number; ends when all ranks differ
import numpy as np


def suffix_array(symbols):
    n = len(symbols)
    _, rank = np.unique(np.asarray(symbols), return_inverse=True)
    rank = rank.reshape(-1).astype(np.int64)
    order = np.argsort(rank, kind="stable")
    k = 1
    while n and rank.max() < n - 1:
        behind = np.concatenate([rank[k:], np.full(min(k, n), -1, np.int64)])
        order = np.lexsort((behind, rank))
        one, two = rank[order], behind[order]
        higher = (one[1:] != one[:-1]) | (two[1:] != two[:-1])
        rank = np.empty(n, np.int64)
        rank[order] = np.concatenate([[0], np.cumsum(higher)])
        k *= 2
    return order.astype(np.int64)
