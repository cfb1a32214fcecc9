"""Text that a model wrote, as training text: what is lost when models learn from models.

    real ─► model 0 ─► text ─► model 1 ─► text ─► …      each learns from the one before

A rare step that one sample happens to miss has probability 0 in every model after it: the tails go
first, and the models' own entropy falls below the language's (Shumailov et al. 2024, "AI models
collapse when trained on recursively generated data", Nature 631). With the real text beside all the
synthetic text the loss stays bounded (Gerstgrasser et al. 2024, 2404.01413): `keep_real`.

`generations` takes any model that learns from documents and writes some. `WordChain` is the
smallest: p(word | the word before), by counting, which for the corpus's domain `chain` is the true
form of the language, so that nothing but the sampling is to blame. Its entropy and its loss stand
beside the floor that the language has.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from typing import Protocol

import numpy as np

from minitrain.errors import InputError

START = ""  # what comes before a document's first word


class Writer(Protocol):
    """A model that has learnt."""

    def write(self, documents: int, seed: int) -> list[str]: ...


@dataclass(frozen=True)
class Generation:
    """A model, and how many documents it learnt from."""

    model: Writer
    learnt_from: int


def generations(
    learn: Callable[[Sequence[str]], Writer],
    real: Sequence[str],
    count: int,
    keep_real: bool = False,
    seed: int = 0,
) -> list[Generation]:
    """The first learns from `real`, each other one from as many documents of the one before.

    `keep_real`: from all that was written so far too, the real documents among it.
    """
    if not real or count < 1:
        raise InputError(f"{len(real)} documents, {count} generations: use 1 or more of each")
    text, result = list(real), []
    for number in range(count):
        result.append(Generation(learn(text), len(text)))
        written = result[-1].model.write(len(real), seed + number)
        text = [*text, *written] if keep_real else written
    return result


class WordChain:
    """p(word | word before) = its share of what followed that word; documents as long as the mean.

    Shapes: W words.
    """

    def __init__(self, documents: Sequence[str]) -> None:
        followers: dict[str, Counter[str]] = defaultdict(Counter)
        sizes = []
        for document in documents:
            words = document.split()
            sizes.append(len(words))
            for before, word in zip([START, *words], words):
                followers[before][word] += 1
        if not sum(sizes):
            raise InputError("there is no word to learn from: give documents with some")
        self.length = round(sum(sizes) / len(sizes))
        self.words = {before: sorted(counts) for before, counts in followers.items()}
        self.counts = {
            before: np.array([followers[before][word] for word in words], float)
            for before, words in self.words.items()
        }

    @property
    def steps(self) -> int:
        """The number of pairs of words it knows: it can never write any other."""
        return sum(map(len, self.words.values()))

    @property
    def entropy(self) -> float:
        """Nats a word that its own text has, each word weighed by how often it was followed."""
        total = sum(counts.sum() for counts in self.counts.values())
        nats = (-(c * np.log(c / c.sum())).sum() for c in self.counts.values())
        return float(sum(nats) / total)

    def loss(self, documents: Sequence[str], unknown: float = 1e-4) -> float:
        """Nats a word on other documents; a step that it does not know has p = `unknown`."""
        nats = words = 0.0
        known = {
            (before, word): -log(count / self.counts[before].sum())
            for before, own in self.words.items()
            for word, count in zip(own, self.counts[before])
        }
        for document in documents:
            told = document.split()
            steps = zip([START, *told], told)
            nats += sum(known.get(step, -log(unknown)) for step in steps)
            words += len(told)
        return nats / max(1.0, words)

    def write(self, documents: int, seed: int) -> list[str]:
        """Texts of its own; after a word that nothing ever followed, one begins anew."""
        rng = np.random.default_rng(seed)
        sums = {before: np.cumsum(counts) for before, counts in self.counts.items()}
        return [self._text(rng.random(self.length).tolist(), sums) for _ in range(documents)]

    def _text(self, draws: list[float], sums: dict[str, np.ndarray]) -> str:
        told, word = [], START
        for draw in draws:
            before = word if word in sums else START
            own = sums[before]
            word = self.words[before][int(np.searchsorted(own, draw * own[-1], side="right"))]
            told.append(word)
        return " ".join(told)
