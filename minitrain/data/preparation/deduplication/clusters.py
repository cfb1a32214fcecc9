"""The union of pairs: a ~ b and b ~ c put a, b and c in one cluster, though a and c never met.

    pairs (0, 3) (3, 7) (2, 5)     of 8 documents
    firsts  0 1 2 0 4 2 6 0        cluster {0, 3, 7} is named by its first, and so is {2, 5}

A document is kept where `firsts[i] == i`. The naive version is union-find (Tarjan 1975), a pair at
a time; the other takes all pairs at once, each round halving the way to the first.
"""

from __future__ import annotations

import numpy as np

from minitrain.errors import InputError


def clusters_naive(pairs: np.ndarray, count: int) -> np.ndarray:
    """`clusters`, by union-find with path halving."""
    _check(pairs, count)
    parent = list(range(count))

    def find(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for a, b in pairs.tolist():
        low, high = sorted((find(a), find(b)))
        parent[high] = low
    return np.array([find(node) for node in range(count)], dtype=np.int64)


def clusters(pairs: np.ndarray, count: int) -> np.ndarray:
    """(E, 2) pairs of `count` nodes -> (count,) int64, the first node of each one's cluster.

    Cost: O((E + count) log count). Each round hangs the higher of two roots below the lower, then
    every node jumps to its parent's parent.
    """
    _check(pairs, count)
    first = np.arange(count, dtype=np.int64)
    a, b = pairs[:, 0], pairs[:, 1]
    while len(a):
        roots_a, roots_b = first[a], first[b]
        apart = roots_a != roots_b
        a, b = a[apart], b[apart]
        low = np.minimum(roots_a[apart], roots_b[apart])
        high = np.maximum(roots_a[apart], roots_b[apart])
        np.minimum.at(first, high, low)
        first = _jumped(first)
    return first


def _jumped(first: np.ndarray) -> np.ndarray:
    while True:
        further = first[first]
        if np.array_equal(further, first):
            return first
        first = further


def _check(pairs: np.ndarray, count: int) -> None:
    if pairs.ndim != 2 or pairs.shape[1] != 2:
        raise InputError(f"pairs of shape {pairs.shape}: give an array of shape (pairs, 2)")
    if len(pairs) and not (pairs.min() >= 0 and pairs.max() < count):
        raise InputError(
            f"pairs name nodes {pairs.min()} to {pairs.max()}, and there are {count}: "
            f"count from 0 to {count - 1}"
        )
