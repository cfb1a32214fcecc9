"""Passages that come again: licences, menus, quotations, in documents that are otherwise unlike.

A window of `length` symbols that has come before, in this document or an earlier one, is a repeat;
what any repeat covers is cut, so that every passage stays where it came first. Windows do not reach
across the end of a document.

    document 0   the quick brown fox jumps          length 9
    document 1   a slow quick brown dog       ->    a slow[ quick brown ]dog

Paper: Lee et al. 2022 (2107.06499), who cut what comes twice in 50 tokens: a model trained on the
rest repeats its training text ten times less. Cost: the suffix array's; of 100 MB of English 1.4 GB
of memory, the text included, and 125 s of one core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from minitrain.data.preparation.deduplication.suffix_array import PART, window_names
from minitrain.errors import InputError, check_list


def repeats_naive(documents: Sequence[Sequence[int]], length: int) -> list[np.ndarray]:
    """`repeats`, by a set of all windows."""
    seen: set[tuple[int, ...]] = set()
    masks = []
    for symbols in documents:
        mask = np.zeros(len(symbols), bool)
        for start in range(len(symbols) - length + 1):
            window = tuple(symbols[start : start + length])
            mask[start : start + length] |= window in seen
            seen.add(window)
        masks.append(mask)
    return masks


def repeats(documents: Sequence[Sequence[int]], length: int) -> list[np.ndarray]:
    """For each document of symbols (code points, bytes, tokens) a bool each: is it in a repeat.

    Each document is asked for three times, one at a time.
    """
    stops = np.cumsum([len(symbols) for symbols in documents], dtype=np.int64)
    if not len(stops) or not stops[-1]:
        return [np.zeros(0, bool) for _ in stops]
    names = window_names(_joined(documents, stops), length)
    n = len(names)
    whole = np.zeros(n, bool)  # windows that end in the document in which they begin
    for low, high in pairwise([0, *stops.tolist()]):
        whole[low : max(low, high - length + 1)] = True
    first = np.full(n, n, names.dtype)  # of each name
    for starts in _places(whole):
        np.minimum.at(first, names[starts], starts)
    for starts in _places(whole):
        whole[starts] = first[names[starts]] < starts  # from here on: those that come again
    return np.split(_covered(whole, length), stops[:-1])


def _joined(documents: Sequence[Sequence[int]], stops: np.ndarray) -> np.ndarray:
    """All symbols, in as few bytes as they need."""
    kinds = {_kind(np.asarray(symbols)) for symbols in documents if len(symbols)}
    text = np.empty(stops[-1], np.result_type(*kinds))
    for symbols, stop in zip(documents, stops.tolist()):
        text[stop - len(symbols) : stop] = symbols
    return text


def _kind(symbols: np.ndarray) -> np.dtype:
    """The smallest there is; what is no symbol stays as it is, and is refused."""
    if symbols.dtype.kind not in "iu" or symbols.min() < 0:
        return symbols.dtype
    return np.min_scalar_type(symbols.max())


def _places(chosen: np.ndarray) -> Iterator[np.ndarray]:
    """The places where it is true, found a part at a time."""
    lows = range(0, len(chosen), PART)
    return (low + np.flatnonzero(chosen[low : low + PART]) for low in lows)


def _covered(begins: np.ndarray, length: int) -> np.ndarray:
    """(n,) bool: is it in a window that begins at one of `begins`, (n,) bool."""
    covered = np.empty(len(begins), bool)
    latest = -length
    for low in range(0, len(begins), PART):
        own = begins[low : low + PART]
        here = np.arange(low, low + len(own))
        since = np.maximum.accumulate(np.where(own, here, latest))
        covered[low : low + len(own)] = here - since < length
        latest = int(since[-1])
    return covered


def cut_repeats(documents: Sequence[str], length: int = 200) -> list[str]:
    """The documents without the passages of `length` signs or more that have come before.

    200 signs are about 50 tokens. A document may come out empty.
    """
    check_list("documents", documents)
    if length < 1:
        raise InputError(f"passages of {length} signs: use 1 or more, 200 is usual")
    signs = _Signs(documents)
    masks = repeats(signs, length)
    return [_text(own[~mask]) for own, mask in zip(signs, masks)]


class _Signs(Sequence):
    """The code points of each text, four bytes each, while it is looked at."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, place: int) -> np.ndarray:
        return np.frombuffer(self.texts[place].encode("utf-32-le", "surrogatepass"), np.uint32)


def _text(signs: np.ndarray) -> str:
    return signs.tobytes().decode("utf-32-le", "surrogatepass")
