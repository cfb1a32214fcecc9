"""Pairs of stories of which one contradicts itself: does a model keep account of who is where?

    … She went to the bakery. That night, she dreamed at the bakery.      the story
    … She went to the bakery. That night, she dreamed in the kitchen.     its twin, log p = -inf

The twin's last sentence names another place, or another object, of the same story where it has
one: nothing but the account tells the two apart. Chance is 1/2, and a perfect model prefers every
story. The way of asking is BLiMP's: Warstadt et al. 2020 (arXiv:1912.00582).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from minitrain.data.stories.domain import Domain
from minitrain.data.stories.scorer import score


def contradicted(story: str, domain: Domain) -> str | None:
    """The twin of a story; None where its last sentence names neither a place nor an object."""
    told, stop, last = story.rpartition(". ")
    for words in (domain.places, tuple(f"the {thing}" for thing in domain.objects)):
        named = next((word for word in words if last.endswith(f" {word}.")), None)
        if named is None:
            continue
        for other in _others(told, named, words):
            twin = told + stop + last.removesuffix(f"{named}.") + f"{other}."
            if score(twin, domain) == -inf:
                return twin
    return None


def _others(told: str, named: str, words: Sequence[str]) -> list[str]:
    """The other words of the list, those that the story has told of first."""
    others = [word for word in words if word != named]
    return sorted(others, key=lambda word: word.split(" ")[-1] not in told)
