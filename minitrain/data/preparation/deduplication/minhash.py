"""MinHash: K numbers that say how alike two documents are, whatever their length.

Each of K hash functions keeps the smallest value over a document's shingles. The smallest over A
and B together is as likely any shingle as another, so it lies in both with probability |A and B| /
|A or B|: two documents agree in a share of their K numbers that is their Jaccard similarity, give
or take sqrt(s (1 - s) / K).

    h_k(x) = a_k x + b_k mod 2^32, a_k odd: a permutation of all 32-bit hashes

Cost: K multiplications and comparisons a shingle; 4 K bytes a document.
Paper: Broder 1997, "On the resemblance and containment of documents". Naive: a document and a hash
at a time. Real: documents in groups that stay in the cache, one array operation for each hash.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from minitrain.data.preparation.deduplication.words import shingle_hashes
from minitrain.errors import InputError

NO_SHINGLE = np.uint32(2**32 - 1)  # what a document without words has in every place
GROUP_BYTES = 1 << 18  # of text at once: its hashes fit a core's second-level cache


def minhash_naive(documents: Iterable[str], hashes: int = 128, words: int = 5, seed: int = 0):
    """`minhash`, a document and a hash function at a time."""
    a, b = _permutations(hashes, seed)
    rows = []
    for text in documents:
        own = shingle_hashes([text], words)[0].tolist()
        permuted = (
            [(int(a[k]) * (x >> 32) + int(b[k])) % 2**32 for x in own] for k in range(hashes)
        )
        rows.append([min(values, default=int(NO_SHINGLE)) for values in permuted])
    return np.array(rows, dtype=np.uint32).reshape(-1, hashes)


def minhash(
    documents: Iterable[str], hashes: int = 128, words: int = 5, seed: int = 0
) -> np.ndarray:
    """Signatures, (N, K) uint32: of each hash function the smallest value over the shingles.

    `documents` may be any iterable, read once. Alike on every platform for the same arguments;
    signatures of other arguments cannot be compared.
    """
    a, b = _permutations(hashes, seed)
    parts = [_group_signatures(group, a, b, words) for group in _groups(documents)]
    return np.concatenate(parts) if parts else np.empty((0, hashes), np.uint32)


def similarity(one: np.ndarray, other: np.ndarray) -> np.ndarray | float:
    """The share of places in which signatures (…, K) agree: an estimate of Jaccard's."""
    return (one == other).mean(axis=-1)


def _group_signatures(group: list[str], a: np.ndarray, b: np.ndarray, words: int) -> np.ndarray:
    hashes, bounds = shingle_hashes(group, words)
    hashes = (hashes >> np.uint64(32)).astype(np.uint32)  # half the bytes for K passes over them
    out = np.full((len(a), len(group)), NO_SHINGLE)  # (K, N)
    with_words = np.flatnonzero(np.diff(bounds))
    if len(with_words):
        starts, permuted = bounds[with_words], np.empty_like(hashes)
        for k in range(len(a)):
            np.multiply(hashes, a[k], out=permuted)
            permuted += b[k]
            out[k, with_words] = np.minimum.reduceat(permuted, starts)
    return out.T.copy()  # (N, K)


def _groups(documents: Iterable[str]) -> Iterator[list[str]]:
    group, size = [], 0
    for text in documents:
        group.append(text)
        size += len(text)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _permutations(hashes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(K,) uint32 each: odd factors, and shifts."""
    if hashes < 1 or seed < 0:
        raise InputError(f"{hashes} hashes, seed {seed}: use 1 hash or more, and a seed >= 0")
    drawn = np.random.PCG64(seed).random_raw(2 * hashes) >> np.uint64(32)
    drawn = drawn.astype(np.uint32).reshape(2, hashes)
    return drawn[0] | np.uint32(1), drawn[1]
