"""Near duplicates: documents whose signatures agree in a whole band, and all that follows.

    documents ─ minhash ─► (N, K) ─ bands ─► (N, b) keys ─ sort ─► pairs ─ clusters ─► firsts

Locality-sensitive hashing: equal keys of a band lie side by side once they are sorted, so no two
documents are ever compared. In a run of n equal keys the first is paired with each other one, n - 1
pairs instead of n²/2: their union is the same. Cost: O(b N log N), 8 bytes a key; the naive
version, every pair's shingles, is O(N²). Source: as in bands.py and minhash.py; FineWeb
(2406.17557) cleans each crawl so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from minitrain.data.preparation.deduplication.bands import Bands, choose_bands
from minitrain.data.preparation.deduplication.clusters import clusters
from minitrain.data.preparation.deduplication.minhash import NO_SHINGLE, minhash
from minitrain.data.preparation.deduplication.words import jaccard, shingles
from minitrain.errors import InputError, check_list


def near_duplicates_naive(
    documents: Sequence[str], threshold: float = 0.75, words: int = 5
) -> np.ndarray:
    """`near_duplicates`, exactly: every pair's Jaccard similarity."""
    check_list("documents", documents)
    sets = [shingles(text, words) for text in documents]
    pairs = [
        (i, j) for j in range(len(sets)) for i in range(j) if jaccard(sets[i], sets[j]) >= threshold
    ]
    return clusters(np.array(pairs, dtype=np.int64).reshape(-1, 2), len(sets))


def near_duplicates(
    documents: Iterable[str],
    threshold: float = 0.75,
    words: int = 5,
    hashes: int = 128,
    seed: int = 0,
) -> np.ndarray:
    """(N,) int64: for each document the first of its cluster; keep those with firsts[i] == i.

    Near `threshold` pairs are found by chance: `choose_bands(threshold, hashes)` tells how likely.
    """
    check_list("documents", documents)
    split = choose_bands(threshold, hashes)
    signatures = minhash(documents, split.hashes, words, seed)
    return clusters(candidate_pairs(signatures, split), len(signatures))


def candidate_pairs(signatures: np.ndarray, split: Bands) -> np.ndarray:
    """(N, K) signatures -> (E, 2) pairs that share a band, or an earlier document that both share.

    A document without words is like no other.
    """
    return pairs_of_keys(band_keys(signatures, split))


def band_keys(signatures: np.ndarray, split: Bands) -> np.ndarray:
    """(N, K) -> (N, b) uint64, a hash of each band's rows; all 0 for a document without words."""
    if signatures.ndim != 2 or signatures.shape[1] < split.hashes:
        raise InputError(
            f"signatures of shape {signatures.shape} do not fill {split.bands} bands of "
            f"{split.rows} rows: give (documents, {split.hashes} or more)"
        )
    keys = np.zeros((len(signatures), split.bands), np.uint64)
    for row in range(split.rows):
        keys ^= signatures[:, row : split.hashes : split.rows]  # (N, b), this row of every band
        keys *= np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    keys[(signatures == NO_SHINGLE).all(axis=1)] = 0
    return keys


def pairs_of_keys(keys: np.ndarray) -> np.ndarray:
    """(N, b) of `band_keys` -> (E, 2): all that a run needs to keep of a document is b numbers."""
    with_words = np.flatnonzero(keys.any(axis=1))
    pairs = [_runs(keys[with_words, band]) for band in range(keys.shape[1])]
    return np.unique(with_words[np.concatenate(pairs)], axis=0)


def _runs(keys: np.ndarray) -> np.ndarray:
    """(N,) -> (E, 2): each but the first of a run of equal keys, with the first."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = ranked[1:] != ranked[:-1]
    starts = order[np.flatnonzero(first)][np.cumsum(first) - 1]  # the first of each one's run
    return np.stack((starts[~first], order[~first]), axis=1)
