"""Pairs of stories of which one contradicts itself: does a model keep account of who acts?

    … Otto the kind hunter sat in the garden. He found a red egg …       the story
    … Otto the kind hunter sat in the garden. She found a red egg …      its twin, log p = -inf

Two characters, and the pronoun at a sentence's start is of the one who acted last. Chance is 1/2, a
perfect model prefers every story; one that forgets names or who acted does not. The way of asking
is BLiMP's: Warstadt et al. 2020 (arXiv:1912.00582).
"""

from __future__ import annotations

OTHER = {"She": "He", "He": "She"}


def contradicted(story: str) -> str | None:
    """The story with the last pronoun that begins a sentence exchanged; None where there is none.

    The world allows one only, that of the one who acted last: so the twin has probability 0.
    """
    sentences = story.split(". ")
    for place in reversed(range(len(sentences))):
        subject, blank, rest = sentences[place].partition(" ")
        if subject in OTHER:
            sentences[place] = OTHER[subject] + blank + rest
            return ". ".join(sentences)
    return None
