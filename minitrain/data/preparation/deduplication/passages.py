"""Repeated passages: licences, menus, quotations, in documents that are otherwise unlike.

A window of `length` characters that occurred before, in this document or an earlier one, is a
repeat; characters covered by any repeat are cut, so every passage keeps its first occurrence.
Windows do not cross document boundaries.

    document 0   the quick brown fox jumps          length 9
    document 1   a slow quick brown dog       ->    a slow[ quick brown ]dog

Lee et al. 2022 (2107.06499) find them with a suffix array, as lab e11 does (`data.plain`), which
sorts passages of every length at once. For one fixed length prefix doubling needs no intermediate
sorts: a hash of 2 k characters combines those of k and of the next k, and only the windows' hashes
are sorted, a sixteenth of them at a time. Their model repeats its training text ten times less.
Of n windows, two unequal ones share a hash with probability n² / 2^65: 3e-4 for 10^8.
Cost: 8 passes over the text for 200 characters, and a sort; about 25 bytes of memory a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from minitrain.data.preparation.deduplication.words import BASE, mixed
from minitrain.errors import check_list, check_whole

PART = 1 << 20  # windows hashed at a time


def cut_repeats(documents: Sequence[str], length: int = 200) -> list[str]:
    """The documents without the passages of `length` characters or more that occurred before.

    200 characters are about 50 tokens. A document may come out empty.
    """
    check_list("documents", documents)
    check_whole("length", length)
    data = "".join(documents).encode("utf-32-le", "surrogatepass")
    text = np.frombuffer(data, np.uint32)
    bounds = list(pairwise(accumulate(map(len, documents), initial=0)))
    whole = np.zeros(len(text), bool)  # windows that do not cross a document boundary
    for low, high in bounds:
        whole[low : max(low, high - length + 1)] = True
    kept = ~_covered(_came_before(window_hashes(text, length), whole), length)
    pieces = (text[low:high][kept[low:high]].tobytes() for low, high in bounds)
    return [piece.decode("utf-32-le", "surrogatepass") for piece in pieces]


def window_hashes(symbols: np.ndarray, length: int) -> np.ndarray:
    """(n,) integers -> (n - length + 1,) uint64, a hash of each `length` of them in a row."""
    hashes, known = mixed(symbols.astype(np.uint64)), 1
    while known < length:
        step = min(known, length - known)
        for low in range(0, len(hashes) - step, PART):  # in place: reads are ahead of writes
            ahead = hashes[low + step : low + step + PART]
            here = hashes[low : low + len(ahead)]
            here[:] = mixed(here * np.uint64(BASE) + ahead)
        hashes = hashes[: max(0, len(hashes) - step)]
        known += step
    return hashes


def _came_before(hashes: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """(n,) bool: a window within one document begins here and equals an earlier one."""
    again = np.zeros(len(whole), bool)
    part = (hashes >> np.uint64(60)).astype(np.uint8)
    for number in range(16):
        places = np.flatnonzero(whole[: len(hashes)] & (part == number))
        order = places[np.argsort(hashes[places], kind="stable")]  # equal ones by position
        ranked = hashes[order]
        again[order[1:][ranked[1:] == ranked[:-1]]] = True
    return again


def _covered(starts: np.ndarray, length: int) -> np.ndarray:
    """(n,) bool: covered by a window of `length` that begins at one of the `starts`."""
    counts = np.cumsum(starts, dtype=np.int64)
    before = np.zeros_like(counts)
    before[length:] = counts[:-length]
    return counts > before
