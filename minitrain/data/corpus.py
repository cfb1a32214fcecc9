"""Tiny stories from a seeded probabilistic language whose entropy is known exactly.

Two characters, up to four objects, ten places: who is where and who has what stays
consistent to the last sentence. Each choice shows in the text, so -log p of a document is a sum
over its choices, and the mean over documents is the floor that no model can beat:

    floor in nats per token = sum of nats / sum of tokens        (each end of document counted)

`log_probability` reads a text back, without the generator, and gives -inf where it contradicts
itself. Same seed, same bytes, on every platform: the random bytes are PCG64's raw stream. A larger
corpus begins with the smaller one; another seed gives held-out documents. A fifth domain, `chain`,
is no story but a chain of words, on which losses follow a power law (stories/chain.py). Labs: all.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log
from typing import Protocol

import numpy as np
from tqdm.auto import tqdm

from minitrain.data.stories.chain import make_chain
from minitrain.data.stories.domain import Domain
from minitrain.data.stories.odds import Dice, Pick, random_bytes
from minitrain.data.stories.scorer import score
from minitrain.data.stories.storyteller import tell
from minitrain.data.stories.worlds import WORLDS
from minitrain.data.tokenizer import Tokenizer
from minitrain.errors import InputError, unknown_name


class Language(Protocol):
    """The distribution that a corpus is drawn from."""

    def tell(self, pick: Pick) -> str:
        """One document, from choices that `pick` makes and counts."""
        ...

    def score(self, text: str) -> float:
        """log p of a whole document; -inf where it is none."""
        ...


@dataclass(frozen=True)
class Stories:
    """The tiny stories of one world."""

    world: Domain

    def tell(self, pick: Pick) -> str:
        return tell(self.world, pick)

    def score(self, text: str) -> float:
        return score(text, self.world)


DOMAINS: dict[str, Language] = {world.name: Stories(world) for world in WORLDS}
DOMAINS["chain"] = make_chain("chain")


@dataclass(frozen=True)
class Corpus:
    """Documents and, for each, -log p: what a perfect model would pay for all of it and its end."""

    domain: str
    documents: list[str]
    nats: np.ndarray  # (documents,) float64

    @property
    def size_bytes(self) -> int:
        return sum(len(document) for document in self.documents)  # ASCII

    @property
    def bits_per_byte(self) -> float:
        return float(self.nats.sum() / log(2) / self.size_bytes)

    def entropy_per_token(self, tokenizer: Tokenizer) -> float:
        """The floor of a loss in nats per token, each document's end token counted."""
        tokens = sum(len(ids) + 1 for ids in tokenizer.encode_batch(self.documents))
        return float(self.nats.sum() / tokens)


def make_corpus(
    size_bytes: int = 4_000_000, seed: int = 0, domain: str = "village", progress: bool = False
) -> Corpus:
    """As many whole documents as it takes to reach `size_bytes`."""
    language = _language(domain)
    if not size_bytes >= 1 or seed < 0:
        raise InputError(
            f"a corpus of {size_bytes} bytes, seed {seed}: use 1 byte or more, seed >= 0"
        )
    dice = Dice(random_bytes(seed, domain))
    documents, nats, size = [], [], 0
    with tqdm(
        total=size_bytes, desc=domain, unit="B", unit_scale=True, disable=not progress
    ) as bar:
        while size < size_bytes:
            dice.nats = 0.0
            documents.append(language.tell(dice.pick))
            nats.append(dice.nats)
            size += len(documents[-1])
            bar.update(len(documents[-1]))
    return Corpus(domain, documents, np.array(nats))


def log_probability(text: str, domain: str = "village") -> float:
    """log p of a text as one whole document: minus infinity if the language cannot tell it."""
    return _language(domain).score(text)


def _language(domain: str) -> Language:
    if domain not in DOMAINS:
        raise unknown_name("domain of the corpus", domain, DOMAINS)
    return DOMAINS[domain]
