"""All suffixes of a text in order: whatever comes twice in it lies side by side there.

    text    b a n a n a        suffixes in order    a  ana  anana  banana  na  nana
            0 1 2 3 4 5        suffix array         5   3     1      0      4    2

In parts, so that nothing but the order, the ranks and who begins a rank is as long as the text:

    counted   into buckets by their first 16 bits: where in the order each bucket lies
    read      a bucket after the other, by the next symbols, until 32 have been read; who is alone
              in a place is left out of each further round
    doubled   the few that still are alike, by ranks: the pair (rank of i, rank of i + k) sorts
              suffixes by 2 k symbols, where ranks sort them by k (Manber and Myers 1990; Larsson
              and Sadakane 1999). Of the State of the Union addresses 5% are alike after 28 signs.

The naive version sorts the suffixes themselves. Cost: O(n log n) to read, and a round, of which
there are log2(n) at most; 10 bytes a symbol of fewer than 256 kinds, and about 60 for each of a
part: of a million, or of the largest bucket. libdivsufsort, in C, is ten times as fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from minitrain.errors import InputError

TABLE = 1 << 21  # room for all of Unicode, and for any vocabulary
PART = 1 << 20  # suffixes that are sorted at a time
READ = 32  # symbols, before ranks are doubled


def suffix_array_naive(symbols: Sequence[int]) -> np.ndarray:
    """`suffix_array`, by sorting n lists of up to n symbols."""
    symbols = list(symbols)
    return np.array(sorted(range(len(symbols)), key=lambda start: symbols[start:]), dtype=np.int64)


def suffix_array(symbols: Sequence[int] | np.ndarray) -> np.ndarray:
    """(n,) integers: where the suffixes begin, in order; one that ends sorts before a longer."""
    return _sorted(_checked(symbols), depth=None)[0]


def window_names(symbols: Sequence[int] | np.ndarray, length: int) -> np.ndarray:
    """(n,) integers: i and j have the same name where the next `length` symbols are the same.

    As many rounds of doubling as the length needs, and no more. A window that the text's end cuts
    short is equal to no other.
    """
    if length < 1:
        raise InputError(f"windows of {length} symbols: use 1 or more")
    return _sorted(_checked(symbols), length)[1]


def _sorted(symbols: np.ndarray, depth: int | None) -> tuple[np.ndarray, np.ndarray]:
    """The order by the first `depth` symbols, and a rank each: the first place of its like.

    `symbols`, of `_checked`, are followed by READ zeros.
    """
    n = len(symbols) - READ
    depth = n if depth is None else min(depth, n)
    known = min(depth, READ)
    bits = max(1, int(symbols.max(initial=0)).bit_length())
    order, first = _bucketed(symbols, bits, min(depth, 2))
    for low, high in _parts(first):
        _read(symbols, order[low:high], first[low:high], bits, known)
    rank = np.empty_like(order)
    _rank(order, first, rank)
    while known < depth and not first.all():
        step = min(known, depth - known)
        for low, high in _parts(first):
            _look_up(rank, order[low:high], first[low:high], step)
        _rank(order, first, rank)
        known += step
    return order, rank


def _bucketed(symbols: np.ndarray, bits: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The order by the first 16 bits of the first `width` symbols, and where others begin in it."""
    n, left_out = len(symbols) - READ, max(0, width * bits - 16)
    order = np.empty(n, np.int32 if len(symbols) < 2**31 else np.int64)

    def heads(low: int) -> np.ndarray:
        keys = np.zeros(min(PART, n - low), np.int64)
        for ahead in range(width):
            keys = keys << bits | symbols[low + ahead : low + ahead + len(keys)]
        return (keys >> left_out).astype(np.uint16)

    lows = range(0, n, PART)
    sizes = sum((_counts(heads(low)) for low in lows), np.zeros(1 << 16, np.int64))
    free = np.cumsum(sizes) - sizes  # the next place in each bucket
    first = np.zeros(n, bool)
    first[free[sizes > 0]] = True
    for low in lows:
        keys = heads(low)
        by_key = np.argsort(keys, kind="stable")  # a radix sort, of 16 bits
        keys, own = keys[by_key], _counts(keys)
        order[np.arange(len(keys)) + (free - np.cumsum(own) + own)[keys]] = by_key + low
        free += own
    return order, first


def _counts(keys: np.ndarray) -> np.ndarray:
    return np.bincount(keys, minlength=1 << 16)


def _parts(first: np.ndarray) -> Iterator[tuple[int, int]]:
    """(low, high) of PART places, and as many more as it takes for no like to be parted."""
    low = 0
    while low < len(first):
        high = min(low + PART, len(first))
        while high < len(first) and not first[high]:
            ahead = first[high : high + PART]
            high += int(ahead.argmax()) if ahead.any() else len(ahead)
        yield low, high
        low = high


def _read(symbols: np.ndarray, order: np.ndarray, first: np.ndarray, bits: int, depth: int) -> None:
    """Sorts a part by its first `depth` symbols: as many at a time as a key of 63 bits has room for
    behind the place where those that are alike so far begin."""
    places = np.arange(len(order))
    count = max(1, (63 - len(order).bit_length()) // bits)
    for seen in range(0, depth, count):
        keys = np.maximum.accumulate(np.where(first, np.arange(len(first)), 0))[places]
        suffixes = order[places]
        for ahead in range(seen, min(seen + count, depth)):
            keys <<= bits
            keys |= symbols[suffixes + ahead]
        places = _refine(keys, suffixes, places, order, first)


def _look_up(rank: np.ndarray, order: np.ndarray, first: np.ndarray, step: int) -> None:
    """Sorts those of a part that are alike by `step` more symbols, by the ranks of before: one that
    is new already would know more symbols than were asked."""
    n = len(rank)
    places = np.flatnonzero(_shared(first))
    suffixes = order[places]
    behind = suffixes.astype(np.int64) + step
    inside = behind < n  # a suffix that has ended sorts first
    keys = rank[suffixes] * np.int64(n + 1)
    keys[inside] += rank[behind[inside]] + np.int64(1)
    _refine(keys, suffixes, places, order, first)


def _refine(
    keys: np.ndarray,
    suffixes: np.ndarray,
    places: np.ndarray,
    order: np.ndarray,
    first: np.ndarray,
) -> np.ndarray:
    """Puts the suffixes into their places by their keys -> the places of those still alike."""
    by_key = np.argsort(keys)
    order[places] = suffixes[by_key]
    first[places] = begins = _begins(keys[by_key])
    return places[_shared(begins)]


def _rank(order: np.ndarray, first: np.ndarray, rank: np.ndarray) -> None:
    """Writes to `rank` for each suffix the first place of its like."""
    begun = 0
    for low, part in _pieces(first):
        own = np.where(part, np.arange(low, low + len(part)), begun)
        own = np.maximum.accumulate(own)
        rank[order[low : low + len(part)]] = own
        begun = own[-1]


def _pieces(array: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    return ((low, array[low : low + PART]) for low in range(0, len(array), PART))


def _dense(symbols: np.ndarray) -> np.ndarray:
    """The same order in the numbers 1, 2, 3, … without gaps; 0 is what lies behind the end."""
    if symbols.max(initial=0) >= TABLE:
        return np.append(np.unique(symbols, return_inverse=True)[1] + 1, np.zeros(READ, np.int64))
    present = np.zeros(int(symbols.max(initial=0)) + 1, bool)
    for _, part in _pieces(symbols):
        present[part] = True
    number = np.cumsum(present, dtype=np.int32)
    dense = np.zeros(len(symbols) + READ, np.min_scalar_type(number[-1]))
    for low, part in _pieces(symbols):
        dense[low : low + len(part)] = number[part]
    return dense


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
    return _dense(symbols.astype(np.int32) if not symbols.size else symbols)
