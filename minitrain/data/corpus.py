"""Tiny stories from a seeded probabilistic language whose entropy is known exactly.

Two characters, up to four objects, ten places: who is where and who has what stays consistent
throughout. Every choice is visible in the text, so -log p of a document is a sum over its
choices, and the mean over documents is the floor that no model can beat:

    floor in nats per token = sum of nats / sum of tokens        (each end of document counted)

Same seed, same bytes, on every platform: the random bytes are PCG64's raw stream. A larger
corpus begins with the smaller one; another seed gives held-out documents. A fifth domain, `chain`,
is a chain of words, on which losses follow a power law (stories/chain.py). Labs: all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from tqdm.auto import tqdm

from minitrain.data.stories.chain import make_chain
from minitrain.data.stories.domain import WORLDS
from minitrain.data.stories.odds import Dice, Pick, random_bytes
from minitrain.data.stories.storyteller import tell
from minitrain.data.tokenizer import Tokenizer
from minitrain.errors import InputError, unknown_name

# Each language writes one document from choices that `pick` makes and counts.
DOMAINS: dict[str, Callable[[Pick], str]] = {w.name: partial(tell, w) for w in WORLDS}
DOMAINS["chain"] = make_chain("chain").tell


@dataclass(frozen=True)
class Corpus:
    """Documents, each with its -log p: a perfect model's loss over it, end token included."""

    domain: str
    documents: list[str]
    nats: np.ndarray  # (documents,) float64

    @property
    def size_bytes(self) -> int:
        return sum(len(document) for document in self.documents)  # ASCII

    def entropy_per_token(self, tokenizer: Tokenizer) -> float:
        """The floor of the loss in nats per token, end tokens counted."""
        tokens = sum(len(ids) + 1 for ids in tokenizer.encode_batch(self.documents))
        return float(self.nats.sum() / tokens)


def make_corpus(
    size_bytes: int = 4_000_000, seed: int = 0, domain: str = "village", progress: bool = False
) -> Corpus:
    """Generates whole documents until they reach `size_bytes`."""
    if domain not in DOMAINS:
        raise unknown_name("domain of the corpus", domain, DOMAINS)
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
            documents.append(DOMAINS[domain](dice.pick))
            nats.append(dice.nats)
            size += len(documents[-1])
            bar.update(len(documents[-1]))
    return Corpus(domain, documents, np.array(nats))
