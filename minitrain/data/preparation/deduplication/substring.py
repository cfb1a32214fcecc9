"""Passages that come again: licences, menus, quotations, in documents that are otherwise unlike.

A window of `length` symbols that has come before, in this document or an earlier one, is a repeat;
what any repeat covers is cut, so that every passage stays where it came first. Windows do not reach
across the end of a document.

    document 0   the quick brown fox jumps          length 9
    document 1   a slow quick brown dog       ->    a slow[ quick brown ]dog

Paper: Lee et al. 2022 (2107.06499), who cut what comes twice in 50 tokens: a model trained on the
rest repeats its training text ten times less. Cost: the suffix array's; about 75 bytes a sign.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from minitrain.data.preparation.deduplication.suffix_array import window_names
from minitrain.errors import InputError


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
    """For each document of symbols (code points, bytes, tokens) a bool each: is it in a repeat."""
    sizes = [len(symbols) for symbols in documents]
    if not sum(sizes):
        return [np.zeros(0, bool) for _ in sizes]
    stops = np.repeat(np.cumsum(sizes), sizes)  # (n,) where each symbol's document is over
    text = np.concatenate([np.asarray(symbols) for symbols in documents if len(symbols)])
    starts = np.flatnonzero(np.arange(len(text)) + length <= stops)
    names = window_names(text, length)[starts]
    first = np.full(len(text), len(text), np.int64)
    np.minimum.at(first, names, starts)
    again = starts[first[names] < starts]
    edges = np.zeros(len(text) + 1, np.int32)
    np.add.at(edges, again, 1)
    np.add.at(edges, again + length, -1)
    covered = np.cumsum(edges[:-1]) > 0
    return np.split(covered, list(accumulate(sizes))[:-1])


def cut_repeats(documents: Sequence[str], length: int = 200) -> list[str]:
    """The documents without the passages of `length` signs or more that have come before.

    200 signs are about 50 tokens. A document may come out empty.
    """
    if length < 1:
        raise InputError(f"passages of {length} signs: use 1 or more, 200 is usual")
    signs = [_code_points(text) for text in documents]
    masks = repeats(signs, length)
    return [_text(own[~mask]) for own, mask in zip(signs, masks)]


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _text(signs: np.ndarray) -> str:
    return signs.tobytes().decode("utf-32-le", "surrogatepass")
