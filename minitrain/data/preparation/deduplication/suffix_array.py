"""All suffixes of a text in order: whatever comes twice in it lies side by side there.

    text    b a n a n a        suffixes in order    a  ana  anana  banana  na  nana
            0 1 2 3 4 5        suffix array         5   3     1      0      4    2

Prefix doubling (Manber and Myers 1990): suffixes sorted by their first k symbols have ranks, and
the pair (rank of i, rank of i + k) sorts them by their first 2 k. Suffixes that are already alone
in their rank are left out of each further round (Larsson and Sadakane 1999): of the State of the
Union addresses 5% are not after 28 signs. The naive version sorts the suffixes themselves.
Cost: O(n log n) a round, at most log2(n) rounds; about 50 bytes a symbol at the peak.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minitrain.errors import InputError

TABLE = 1 << 21  # room for all of Unicode, and for any vocabulary


def suffix_array_naive(symbols: Sequence[int]) -> np.ndarray:
    """`suffix_array`, by sorting n lists of up to n symbols."""
    symbols = list(symbols)
    return np.array(sorted(range(len(symbols)), key=lambda start: symbols[start:]), dtype=np.int64)


def suffix_array(symbols: Sequence[int] | np.ndarray) -> np.ndarray:
    """(n,) int64: where the suffixes begin, in their order; one that ends sorts before a longer."""
    return _doubled(_checked(symbols), depth=None)[0].astype(np.int64)


def window_names(symbols: Sequence[int] | np.ndarray, length: int) -> np.ndarray:
    """(n,) integers: i and j have the same name where the next `length` symbols are the same.

    As many rounds of doubling as the length needs, and no more. A window that the text's end cuts
    short is equal to no other.
    """
    if length < 1:
        raise InputError(f"windows of {length} symbols: use 1 or more")
    return _doubled(_checked(symbols), length)[1]


def _doubled(symbols: np.ndarray, depth: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The order by the first `depth` symbols, and a rank each: the first place of its like."""
    n = len(symbols)
    depth = n if depth is None else min(depth, n)
    kind = np.int32 if n < 2**31 - 1 else np.int64
    keys, known = _packed(symbols, depth)
    order = np.argsort(keys).astype(kind)
    first = _begins(keys[order])
    del keys
    places = np.arange(n, dtype=kind)
    rank = np.empty(n, kind)
    rank[order] = np.maximum.accumulate(np.where(first, places, 0))
    places = places[_shared(first)]
    while known < depth and len(places):
        step = min(known, depth - known)
        suffixes = order[places]
        behind = suffixes.astype(np.int64) + step
        keys = rank[suffixes] * np.int64(n + 1)
        inside = behind < n  # a suffix that has ended sorts first
        keys[inside] += rank[behind[inside]] + np.int64(1)
        by_key = np.argsort(keys)
        order[places] = suffixes[by_key]
        first = _begins(keys[by_key])
        rank[order[places]] = np.maximum.accumulate(np.where(first, places, 0))
        places = places[_shared(first)]
        known += step
    return order, rank


def _packed(symbols: np.ndarray, depth: int) -> tuple[np.ndarray, int]:
    """(n,) int64, as many of the next symbols in each as it has room for, and how many."""
    bits = int(symbols.max(initial=0)).bit_length()
    count = max(1, min(63 // bits, depth)) if len(symbols) else 1
    keys = np.zeros(len(symbols), np.int64)
    for step in range(count):
        keys <<= bits
        keys[: len(symbols) - step] += symbols[step:]
    return keys, count


def _dense(symbols: np.ndarray) -> np.ndarray:
    """The same order in the numbers 1, 2, 3, … without gaps; 0 is what lies behind the end."""
    if symbols.max(initial=0) >= TABLE:
        return np.unique(symbols, return_inverse=True)[1] + 1
    present = np.zeros(int(symbols.max()) + 1, bool)
    present[symbols] = True
    return np.cumsum(present, dtype=np.int32)[symbols]


def _begins(ranked: np.ndarray) -> np.ndarray:
    """(n,) bool: where a key differs from the one before."""
    first = np.ones(len(ranked), bool)
    first[1:] = ranked[1:] != ranked[:-1]
    return first


def _shared(first: np.ndarray) -> np.ndarray:
    """(n,) bool: who is not alone, by where each run of equal ones begins."""
    return ~(first & np.append(first[1:], True))


def _checked(symbols: Sequence[int] | np.ndarray) -> np.ndarray:
    symbols = np.asarray(symbols)
    if symbols.ndim != 1 or (symbols.size and symbols.dtype.kind not in "iu"):
        raise InputError(
            f"symbols of shape {symbols.shape} and type {symbols.dtype}: give one row of integers, "
            "such as np.frombuffer(text, np.uint8) or token ids"
        )
    if symbols.size and symbols.min() < 0:
        raise InputError(f"a symbol is {symbols.min()}: use 0 or more")
    return _dense(symbols) if symbols.size else symbols.astype(np.int32)
