"""Text to words, and to the hashes of its shingles: all runs of w words.

A word is a run of letters and digits, in lower case; a Chinese or Japanese character is a word
by itself; punctuation and white space only separate words. (Thai, Lao and Khmer, written without
spaces, are not segmented: a sentence is one word, and one changed letter changes it.) A document of
fewer than w words has one shingle, all of it; one without words has none.

`shingles` is the definition, a Python set of tuples. `shingle_hashes` computes the same set as
numbers, for many documents at once, by array operations on their bytes: a word's hash is the
difference of two prefix sums of c_i · P^i (mod 2^64, where an odd P is invertible).
Cost: about 50 bytes of memory for each byte of the documents given at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from minitrain.errors import InputError

PUNCTUATION = re.compile(
    "[\u0080-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb-\u00bf\u2000-\u206f\u3000-\u303f]"
)
CHARACTER = re.compile("[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")  # each is a word
WORD = re.compile(rb"[a-z0-9\x80-\xff]+")
IN_WORD = np.array([bool(WORD.match(bytes([byte]))) for byte in range(256)])
DRAWN = np.random.PCG64(1508).random_raw(512)  # the same on every platform
BYTE_VALUES, FACTORS = DRAWN[:256], DRAWN[256:] | np.uint64(1)
BASE = int(FACTORS[-1])
INVERSE = pow(BASE, -1, 2**64)


def plain_bytes(text: str) -> bytes:
    """Lower case in UTF-8; separators are the bytes that are no letter or digit and < 0x80."""
    text = text.lower()
    if not text.isascii():
        text = CHARACTER.sub(r" \g<0> ", PUNCTUATION.sub(" ", text))
    return text.encode("utf-8", "surrogatepass")


def shingles(text: str, width: int = 5) -> set[tuple[bytes, ...]]:
    """All runs of `width` words of a text."""
    _check(width)
    words = WORD.findall(plain_bytes(text))
    starts = range(max(1, len(words) - width + 1)) if words else ()
    return {tuple(words[start : start + width]) for start in starts}


def jaccard(one: set, other: set) -> float:
    """|A and B| / |A or B|; 0 if both are empty, since nothing shows similarity."""
    return len(one & other) / max(1, len(one | other))


def shingle_hashes(documents: Sequence[str], width: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """(S,) uint64 hashes of all shingles, repeated ones too, and (N + 1,) int64 bounds.

    hashes[bounds[i]:bounds[i + 1]] are document i's. Two unequal shingles share a hash with
    probability 2^-64.
    """
    _check(width)
    words, bounds = _word_hashes([plain_bytes(text) for text in documents])
    counts = np.diff(bounds)
    owner_stops = np.repeat(bounds[1:], counts)  # (W,) where the word's document ends
    at = np.arange(len(words))
    hashes = np.zeros_like(words)  # (W,) of the shingle that begins at each word
    for step in range(min(width, int(counts.max(initial=0)))):
        inside = words[step:] * FACTORS[step]
        inside[at[step:] >= owner_stops[: len(inside)]] = 0
        hashes[: len(inside)] += inside
    whole = at + width <= owner_stops
    whole[bounds[:-1][counts > 0]] = True  # a short document's only shingle
    return mixed(hashes[whole]), np.concatenate(([0], np.cumsum(whole)))[bounds]


def _word_hashes(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(W,) uint64 hashes of all words, and (N + 1,) bounds of the documents among them."""
    data = np.frombuffer(b" ".join((b"", *texts, b"")), np.uint8)  # a space on either side of each
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    document_starts = np.concatenate(([0], np.cumsum(lengths + 1)))
    inside = IN_WORD[data]
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    starts, stops = edges[::2], edges[1::2]
    powers, inverses = _powers(1 << max(12, (len(data) - 1).bit_length()))
    sums = np.cumsum(BYTE_VALUES[data] * powers[: len(data)])
    hashes = (sums[stops - 1] - sums[starts - 1]) * inverses[starts]
    return mixed(hashes), np.searchsorted(starts, document_starts)


@lru_cache(maxsize=1)
def _powers(count: int) -> tuple[np.ndarray, np.ndarray]:
    """BASE^i and BASE^-i mod 2^64, for i < count."""
    result = []
    for base in (BASE, INVERSE):
        steps = np.full(count, base, dtype=np.uint64)
        steps[0] = 1
        result.append(np.cumprod(steps))
    return result[0], result[1]


def mixed(x: np.ndarray) -> np.ndarray:
    """Every bit of the result depends on every bit of x (splitmix64's last steps, Steele 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _check(width: int) -> None:
    if not 1 <= width <= len(FACTORS):
        raise InputError(f"shingles of {width} words: use 1 to {len(FACTORS)}, 5 is usual")
