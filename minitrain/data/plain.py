"""Data preparation as lab e11 writes it, each idea in a few lines.

    quality             the first of Gopher's rules that a text fails
    minhash             the smallest value of every hash function over a document's shingles
    candidate_pairs     documents that agree in a whole band
    clusters            union-find over pairs read once
    suffix_array        prefix doubling
    mixture_weights     a temperature, and a limit on the passes over a small source
    lay_out             rows of whole documents, their positions and attention mask
    Stream              shuffled rows, resumed at the exact row, on any number of ranks

Texts and pairs are held in memory, and the mask is materialized: real data goes through
`preparation`, `packing`, `stream` and `loader`. Their tests check that both give the same results.
Shapes: N documents or rows  S shingles  K hashes  T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor


def quality(text: str) -> str:
    """The name of the first rule that the text fails, "" if it passes all."""
    words = text.split()
    if len(words) < 50:
        return "too_few_words"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    stop_words = {"the", "be", "to", "of", "and", "that", "have", "with"}
    ellipses = text.count("...") + text.count("…")
    letters = sum(any(map(str.isalpha, word)) for word in words)
    bullets = sum(line.startswith(("•", "-", "*")) for line in lines)
    broken = sum(line.endswith(("...", "…")) for line in lines)
    fails = {
        "unusual_word_length": not 3 <= sum(map(len, words)) / len(words) <= 10,
        "too_many_ellipses": ellipses / len(words) > 0.1,
        "mostly_bullets": bullets / len(lines) > 0.9,
        "lines_break_off": broken / len(lines) > 0.3,
        "words_without_letters": letters / len(words) < 0.8,
        "no_stop_words": len(stop_words.intersection(text.lower().split())) < 2,
    }
    return next((name for name, failed in fails.items() if failed), "")


def minhash(hashes: np.ndarray, bounds: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Shingles' hashes (S,) uint32 of N documents, bounds (N + 1,) -> signatures (N, K) uint32.

    h_k(x) = a_k x + b_k mod 2^32; all 2^32 - 1 for a document without shingles.
    """
    signatures = np.full((len(a), len(bounds) - 1), 2**32 - 1, np.uint32)
    filled = np.flatnonzero(np.diff(bounds))
    if len(filled):
        for k in range(len(a)):
            values = hashes * a[k] + b[k]  # (S,), and uint32 wraps around by itself
            signatures[k, filled] = np.minimum.reduceat(values, bounds[filled])
    return signatures.T.copy()


def candidate_pairs(signatures: np.ndarray, bands: int, rows: int) -> list[tuple[int, int]]:
    """Signatures (N, K) uint32 -> pairs (i, j), where i < j is the first in j's bucket."""
    pairs = set()
    filled = np.flatnonzero((signatures != 2**32 - 1).any(axis=1)).tolist()
    for band in range(bands):
        first: dict[bytes, int] = {}  # a bucket of each band's own
        for j in filled:
            key = signatures[j, band * rows : (band + 1) * rows].tobytes()
            i = first.setdefault(key, j)
            if i != j:
                pairs.add((i, j))
    return sorted(pairs)


def clusters(pairs: Iterable[tuple[int, int]], count: int) -> list[int]:
    """The first document of each document's cluster, for `count` of them; reads `pairs` once."""
    parent = list(range(count))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for i, j in pairs:
        low, high = sorted((root(i), root(j)))
        parent[high] = low
    return [root(node) for node in range(count)]


def suffix_array(symbols: np.ndarray) -> np.ndarray:
    """(n,) integers >= 0 -> (n,) int64, the start positions of the suffixes in sorted order."""
    n = len(symbols)
    rank = np.unique(symbols, return_inverse=True)[1].astype(np.int64)
    order, step = np.argsort(rank, kind="stable"), 1
    while n and rank.max() < n - 1:
        behind = np.zeros(n, np.int64)  # 0: the text is over, which sorts first
        behind[: max(0, n - step)] = rank[step:] + 1
        key = rank * (n + 1) + behind
        order = np.argsort(key, kind="stable")
        ranked = key[order]
        rank[order] = np.concatenate(([0], np.cumsum(ranked[1:] != ranked[:-1])))
        step *= 2
    return order


def mixture_weights(
    sizes: Sequence[float], temperature: float, budget: float, most_passes: float = 4.0
) -> list[float]:
    """Shares of `budget` tokens, p ~ size^(1/T), at most `most_passes` over any source."""
    if budget > most_passes * sum(sizes):
        raise ValueError(f"{budget:g} tokens are more than {most_passes:g} passes over all sources")
    weights, free, left = [0.0] * len(sizes), set(range(len(sizes))), 1.0
    while free:
        largest = max(sizes[i] for i in free)  # of those left, or at a low T all would be 0
        tempered = {i: (sizes[i] / largest) ** (1 / temperature) for i in free}
        for i in free:
            weights[i] = left * tempered[i] / sum(tempered.values())
        over = {i for i in free if weights[i] * budget > most_passes * sizes[i]}
        if not over:
            break
        for i in over:
            weights[i] = most_passes * sizes[i] / budget
            left -= weights[i]
        free -= over
    return weights


def lay_out(
    rows: Sequence[Sequence[Sequence[int]]], length: int, end: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of whole documents -> tokens, targets, positions (N, T) int64, mask (N, T, T) bool.

    A document of n tokens is the input [end] t1 … tn with targets t1 … tn [end]. Padding: tokens
    `end`, targets -100, a document of its own, so that no row of the mask is empty.
    """
    tokens = torch.full((len(rows), length), end)
    targets = torch.full_like(tokens, -100)
    positions, mask = torch.zeros_like(tokens), torch.zeros(len(rows), length, length).bool()
    for n, row in enumerate(rows):
        at = 0
        for document in (*row, None):
            size = length - at if document is None else len(document) + 1
            own = slice(at, at + size)
            if document is not None:
                tokens[n, own] = torch.tensor([end, *document])
                targets[n, own] = torch.tensor([*document, end])
            positions[n, own] = torch.arange(size)
            mask[n, own, own] = torch.ones(size, size).tril().bool()
            at += size
    return tokens, targets, positions, mask


class Stream:
    """Rows 0 to `rows` - 1, reshuffled each epoch; iterating gives the rest of one epoch."""

    def __init__(self, rows: int, batch: int, rank: int = 0, ranks: int = 1, seed: int = 0) -> None:
        self.rows, self.batch, self.rank, self.ranks, self.seed = rows, batch, rank, ranks, seed
        self.epoch = self.consumed = 0  # summed over all ranks

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's rows of each step; the number of steps is the same on every rank."""
        order = np.random.default_rng([self.seed, self.epoch]).permutation(self.rows)
        while self.consumed < self.rows:
            step = order[self.consumed : self.consumed + self.batch * self.ranks]
            self.consumed += len(step)
            yield step[self.rank :: self.ranks].tolist()
        self.epoch, self.consumed = self.epoch + 1, 0

    def state(self) -> dict[str, int]:
        """The position over all ranks, as plain numbers."""
        return {"epoch": self.epoch, "consumed": self.consumed}

    def resume(self, state: dict[str, int]) -> None:
        """Continues from a saved state, on any number of ranks."""
        self.epoch, self.consumed = state["epoch"], state["consumed"]
