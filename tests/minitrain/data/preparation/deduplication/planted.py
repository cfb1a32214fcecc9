"""Documents of drawn words, and edited copies of them, with their true similarities."""

from __future__ import annotations

import numpy as np

VOCABULARY = 20_000


def drawn_documents(count: int, words: int, seed: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return rng.integers(0, VOCABULARY, (count, words)).tolist()


def edited(document: list[int], share: float, rng: np.random.Generator) -> list[int]:
    """Each word replaced with probability `share`."""
    return [int(rng.integers(VOCABULARY)) if rng.random() < share else word for word in document]


def as_text(document: list[int]) -> str:
    return " ".join(f"w{word}" for word in document)
