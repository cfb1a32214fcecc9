"""Sequences whose loss has two known floors: words of a chain, and facts that are asked for again.

    dalo kemi  Mia loaf  suri  Tom kite  dalo suri  Mia loaf  kemi  Tom kite  …
    words      a fact    word  a fact    words      recall    word  recall

Some tokens follow from the few before them; others must be looked up far back ("associative
recall", Zoology: Arora et al., arXiv 2312.04927). Here they are labelled, and, given that a word or
a thing comes, their floors are exact:

    WORD      each word has 4 followers, odds 1/2, 1/4, 1/8, 1/8: 1.75 bits = 1.213 nats
    NAME      one of the names
    THING     in a fact, any of the things: log(things) nats
    RECALLED  the thing of a name that stood before: 0 nats

Lab: e14. Shapes: B rows  T tokens  N facts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

WORD, NAME, THING, RECALLED = range(4)
ODDS = torch.tensor([8.0, 4.0, 2.0, 2.0]) / 16
WORD_FLOOR = 1.75 * math.log(2)


@dataclass(frozen=True)
class Recall:
    """Each row: `words` words, `facts` facts in its first half, `asked` questions in the second."""

    facts: int = 6
    asked: int = 12
    words: int = 24
    names: int = 16  # and as many things
    vocabulary: int = 20  # words

    @property
    def vocab_size(self) -> int:
        return self.vocabulary + 2 * self.names

    @property
    def length(self) -> int:
        return self.words + 2 * (self.facts + self.asked)

    def draw(self, rows: int, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """-> tokens (B, T) int64, and each token's kind (B, T)."""

        def uniform(count: int) -> Tensor:
            return torch.rand(rows, count, generator=generator)

        names = uniform(self.names).argsort(dim=1)[:, : self.facts]  # (B, N), all different
        things = (uniform(self.facts) * self.names).long()
        which = (uniform(self.asked) * self.facts).long()
        pairs = torch.stack((names, things + self.names), dim=-1)  # (B, N, 2)
        asked = pairs.gather(1, which[..., None].expand(-1, -1, 2))
        pairs = torch.cat((pairs, asked), dim=1) + self.vocabulary
        kinds = torch.tensor([[NAME, THING]] * self.facts + [[NAME, RECALLED]] * self.asked)
        # A pair stays together: both of its tokens have the key of one place in the row.
        places = torch.cat((uniform(self.facts) / 2, 0.5 + uniform(self.asked) / 2), dim=1)
        places = torch.cat((places.repeat_interleave(2, 1), uniform(self.words)), dim=1)
        tokens = F.pad(pairs.flatten(1), (0, self.words))
        kinds = torch.cat((kinds.flatten(), torch.full((self.words,), WORD))).expand(rows, -1)
        order = places.argsort(dim=1, stable=True)
        tokens, kinds = tokens.gather(1, order), kinds.gather(1, order)
        tokens[kinds == WORD] = self.chain(rows, generator).flatten()  # in the chain's order
        return tokens, kinds

    def chain(self, rows: int, generator: torch.Generator | None = None) -> Tensor:
        """(B, words): word w is followed by 3·w + 1, 3, 7 or 8, modulo the words."""
        steps = torch.tensor([1, 3, 7, 8])
        word, out = torch.zeros(rows, dtype=torch.long), []
        for _ in range(self.words):
            step = steps[torch.multinomial(ODDS.expand(rows, -1), 1, generator=generator)[:, 0]]
            word = (3 * word + step) % self.vocabulary
            out.append(word)
        return torch.stack(out, dim=1)

    def losses(self, logits: Tensor, tokens: Tensor, kinds: Tensor) -> dict[str, float]:
        """logits (B, T, V) of tokens and kinds (B, T) -> mean nats over the floor, and the share of
        recalled things whose logit is the largest of all things'."""
        logits, tokens, kinds = logits[:, :-1], tokens[:, 1:], kinds[:, 1:]
        words, things = kinds == WORD, kinds == RECALLED
        first = self.vocabulary + self.names  # the first thing
        of_words = F.cross_entropy(logits[words][:, : self.vocabulary], tokens[words])
        guesses, right = logits[things][:, first:], tokens[things] - first
        return {
            "words": of_words.item() - WORD_FLOOR,
            "recalled": F.cross_entropy(guesses, right).item(),
            "right": (guesses.argmax(dim=-1) == right).float().mean().item(),
        }


class Memory:
    """Pairs of a key and a value in `numbers` numbers, whatever their count: lab e14's open task.

    This one is the delta rule at rate 1/2 in a matrix: a write leaves half of an old value, and
    disturbs those under other keys by half of what rate 1 would.
    """

    rate = 0.5

    def __init__(self, keys: int, values: int, numbers: int):
        self.shape, self.numbers = (keys, values), numbers

    def write(self, state: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """state (numbers,) float32, key (C,) of length 1, value (P,) -> the new state."""
        used = self.shape[0] * self.shape[1]
        matrix = state[:used].view(self.shape)  # (C, P)
        matrix = matrix + self.rate * torch.outer(key, value - key @ matrix)
        return torch.cat((matrix.flatten(), state[used:]))

    def read(self, state: Tensor, key: Tensor) -> Tensor:
        """The value last written under this key, or what is left of it: (P,)."""
        return key @ state[: self.shape[0] * self.shape[1]].view(self.shape)
