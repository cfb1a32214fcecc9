"""Prompts of random tokens."""

from __future__ import annotations

import random


def prompts(count: int, most: int = 16, vocabulary: int = 61, seed: int = 0) -> list[list[int]]:
    """Some begin alike."""
    chance = random.Random(seed)
    common = chance.choices(range(3, vocabulary), k=10)
    return [
        common[: chance.choice([0, 0, 5, 10])]
        + chance.choices(range(3, vocabulary), k=chance.randint(1, most - 10))
        for _ in range(count)
    ]
