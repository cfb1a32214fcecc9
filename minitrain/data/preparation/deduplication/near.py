"""Near duplicates: MinHash signatures, bands, and the union of all pairs that share a band.

    documents ─ minhash ─► (N, K) ─ bands ─► (N, b) keys ─ sort ─► pairs ─ clusters ─► firsts

**MinHash** (Broder 1997): each of K hash functions keeps the smallest value over a document's
shingles. Every shingle of A ∪ B is equally likely to be the smallest, so the smallest is in both
with probability |A and B| / |A or B|: the share of their K numbers in which two documents agree
estimates their Jaccard similarity s, give or take sqrt(s (1 - s) / K).

    h_k(x) = a_k x + b_k mod 2^32, a_k odd: a permutation of all 32-bit hashes

**Bands** (Indyk and Motwani 1998; Leskovec et al., Mining of Massive Datasets, 3.4): K hashes cut
into b bands of r rows; two documents are a pair if they agree in a whole band.

    P(a pair of similarity s meets) = 1 - (1 - s^r)^b        the S-curve

      1 |            .----     more rows: further right and steeper (fewer false pairs)
        |          /           more bands: further left (fewer misses)
        |        /
      0 |______.'_________     about (1/b)^(1/r) is where it passes a half
                t         1

Sorting puts equal keys of a band side by side, so documents are never compared pairwise: in a run
of n equal keys the first is paired with each other one, n - 1 pairs instead of n²/2.

**Clusters**: a ~ b and b ~ c put a, b and c in one cluster, even if a and c never met. A document
is kept if `firsts[i] == i`.

The naive version compares every pair's shingles, O(N²). Cost: K multiplications and comparisons a
shingle, O(b N log N) to sort; 8 bytes a key. FineWeb (2406.17557) deduplicates each crawl with 14
bands of 8 rows. Shapes: N documents  S shingles  K hashes  E pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from minitrain.data.preparation.deduplication.words import jaccard, shingle_hashes, shingles
from minitrain.errors import InputError, check_list, check_whole

NO_SHINGLE = np.uint32(2**32 - 1)  # every hash of a document without words
GROUP_CHARACTERS = 1 << 18  # hashed at once: their hashes fit a core's L2 cache
POINTS = 1000  # of the midpoint rule for the areas under an S-curve


def near_duplicates_naive(
    documents: Sequence[str], threshold: float = 0.75, words: int = 5
) -> np.ndarray:
    """Exact version of `near_duplicates`, from every pair's Jaccard similarity."""
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

    Pairs near `threshold` are found with some probability: see `choose_bands(threshold, hashes)`.
    """
    check_list("documents", documents)
    split = choose_bands(threshold, hashes)
    keys = band_keys(minhash(documents, split.hashes, words, seed), split)
    return clusters(pairs_of_keys(keys), len(keys))


def minhash(
    documents: Iterable[str], hashes: int = 128, words: int = 5, seed: int = 0
) -> np.ndarray:
    """Signatures, (N, K) uint32: the smallest value of each hash function over the shingles.

    `documents` may be any iterable, read once. The same on every platform for the same arguments;
    signatures made with other arguments cannot be compared.
    """
    a, b = _permutations(hashes, seed)
    parts = [_group_signatures(group, a, b, words) for group in _groups(documents)]
    return np.concatenate(parts) if parts else np.empty((0, hashes), np.uint32)


@dataclass(frozen=True)
class Bands:
    """`bands` of `rows` hashes each."""

    bands: int
    rows: int

    @property
    def hashes(self) -> int:
        return self.bands * self.rows

    def meeting_probability(self, similarity: float | np.ndarray) -> float | np.ndarray:
        """1 - (1 - s^r)^b, for similarities in [0, 1]."""
        return 1 - (1 - similarity**self.rows) ** self.bands


@lru_cache  # the settings of a preparation ask for the same split in every block
def choose_bands(threshold: float, hashes: int = 128) -> Bands:
    """The split of at most `hashes` hashes whose curve is closest to a step at `threshold`: least
    area of false positives below it plus misses above it."""
    if not 0 < threshold < 1:
        raise InputError(f"a threshold of {threshold} parts nothing: give one between 0 and 1")
    check_whole("hashes", hashes)
    splits = [
        Bands(bands, rows)
        for rows in range(1, min(hashes, 64) + 1)
        for bands in range(1, hashes // rows + 1)
    ]
    return min(splits, key=lambda split: _error(split, threshold))


def band_keys(signatures: np.ndarray, split: Bands) -> np.ndarray:
    """(N, K) -> (N, b) uint64, a hash of each band's rows; all 0 for a document without words."""
    keys = np.zeros((len(signatures), split.bands), np.uint64)
    for row in range(split.rows):
        keys ^= signatures[:, row : split.hashes : split.rows]  # (N, b), this row of every band
        keys *= np.uint64(0x9E3779B97F4A7C15)
        keys ^= keys >> np.uint64(29)
    keys[(signatures == NO_SHINGLE).all(axis=1)] = 0
    return keys


def pairs_of_keys(keys: np.ndarray) -> np.ndarray:
    """(N, b) of `band_keys` -> (E, 2) pairs that share a band, or that both share one with an
    earlier document. A document without words matches no other."""
    with_words = np.flatnonzero(keys.any(axis=1))
    pairs = [_runs(keys[with_words, band]) for band in range(keys.shape[1])]
    return np.unique(with_words[np.concatenate(pairs)], axis=0)


def clusters(pairs: np.ndarray, count: int) -> np.ndarray:
    """(E, 2) pairs of `count` nodes -> (count,) int64, the first node of each node's cluster.

    All pairs at once, where union-find (`data.plain`) takes one at a time: each round links the
    higher of two roots to the lower, then every node points to its parent's parent, so paths to the
    root halve. Cost: O((E + count) log count).
    """
    first = np.arange(count, dtype=np.int64)
    a, b = pairs[:, 0], pairs[:, 1]
    while len(a):
        apart = first[a] != first[b]
        a, b = a[apart], b[apart]
        np.minimum.at(first, np.maximum(first[a], first[b]), np.minimum(first[a], first[b]))
        while not np.array_equal(further := first[first], first):
            first = further
    return first


def _permutations(hashes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(K,) uint32 each: odd factors and offsets."""
    if hashes < 1 or seed < 0:
        raise InputError(f"{hashes} hashes, seed {seed}: use 1 hash or more, and a seed >= 0")
    drawn = np.random.PCG64(seed).random_raw(2 * hashes) >> np.uint64(32)
    drawn = drawn.astype(np.uint32).reshape(2, hashes)
    return drawn[0] | np.uint32(1), drawn[1]


def _groups(documents: Iterable[str]) -> Iterator[list[str]]:
    group, size = [], 0
    for text in documents:
        group.append(text)
        size += len(text)
        if size >= GROUP_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group


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


def _error(split: Bands, threshold: float) -> float:
    """False positives plus misses, by the midpoint rule."""
    middles = (np.arange(POINTS) + 0.5) / POINTS
    met = split.meeting_probability(middles)
    return float(met[middles < threshold].sum() + (1 - met[middles >= threshold]).sum())


def _runs(keys: np.ndarray) -> np.ndarray:
    """(N,) -> (E, 2): each key of a run of equal ones after the first, paired with the first."""
    order = np.argsort(keys, kind="stable")
    ranked = keys[order]
    first = np.ones(len(keys), bool)
    first[1:] = ranked[1:] != ranked[:-1]
    starts = order[np.flatnonzero(first)][np.cumsum(first) - 1]  # the first of each key's run
    return np.stack((starts[~first], order[~first]), axis=1)
