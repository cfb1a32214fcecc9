"""A chain of invented words: each word depends on the word before it, and on nothing else.

    mopa suri dalo kemi dalo …     one of 32 followers of "mopa", then one of 32 of "suri", …

Shannon's first-order approximation to language (1948, §3). There is nothing to understand, only
100 x 32 probabilities to learn, the frequent ones first: so the loss falls smoothly with model size
and data, along a power law, whereas the stories have a step (who has the loaf is learned late and
suddenly). Every word has the same probabilities over its own followers, so a document costs `WORDS`
times the entropy of one table on average: the floor in closed form. Labs: e01, for the scaling law.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from minitrain.data.stories.odds import Pick, random_bytes, ranked

T = TypeVar("T")
VOCABULARY, FOLLOWERS = 100, 32
WORDS = 116  # in a document
ODDS = ranked(FOLLOWERS, 5)
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"


@dataclass(frozen=True)
class Chain:
    """`followers[w]` are the words that may come after word w, the likeliest first."""

    words: tuple[str, ...]
    followers: tuple[tuple[int, ...], ...]

    def tell(self, pick: Pick) -> str:
        """One document: the first word follows word 0, which is not written."""
        written, word = [], 0
        for _ in range(WORDS):
            word = self.followers[word][pick(ODDS, ())]
            written.append(self.words[word])
        return " ".join(written)


def make_chain(name: str) -> Chain:
    """The chain of that name: its words and their followers are drawn from fixed random bytes."""
    dice = random_bytes(0, name)
    words = _distinct(VOCABULARY, lambda: _syllable(dice) + _syllable(dice))
    followers = tuple(_distinct(FOLLOWERS, lambda: _frequent(dice)) for _ in words)
    return Chain(words, followers)


def _syllable(dice: Iterator[int]) -> str:
    return CONSONANTS[next(dice) % len(CONSONANTS)] + VOWELS[next(dice) % len(VOWELS)]


def _frequent(dice: Iterator[int]) -> int:
    """A word index, small ones likelier: the product of two uniform draws, roughly Zipfian."""
    return next(dice) * next(dice) * VOCABULARY >> 16


def _distinct(count: int, draw: Callable[[], T]) -> tuple[T, ...]:
    """The first `count` different draws, in order."""
    drawn: dict[T, None] = {}
    while len(drawn) < count:
        drawn[draw()] = None
    return tuple(drawn)
