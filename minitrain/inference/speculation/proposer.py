"""A proposer's input for one request, and the draft that it returns.

A proposer may be wrong in everything but one thing: a draft's `probabilities` must be those that
its tokens were sampled from. Tokens that were picked, not sampled (a table, the likeliest ones, a
tree of siblings) have none, and the target draws its own token and checks whether it is among
them (answers.py).

Shapes: n drafted tokens  V vocabulary  D width.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from minitrain.errors import InputError
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.sampling import draw, shaped
from minitrain.model.transformer import Transformer

ROOT = -1  # the parent of a draft that follows the text's last token


@dataclass(frozen=True)
class Asked:
    """One request, as a proposer sees it.

    `hidden` (n, D): the inputs of the target's head at the last n tokens but the newest, which
    the target has not read; n counts those since the proposer's last call, and may be 0.
    """

    key: Hashable  # identifies the request's caches
    tokens: Sequence[int]  # prompt and text so far, not empty
    most: int  # the maximum draft length
    parameters: SamplingParameters
    hidden: Tensor
    generator: torch.Generator | None = None


@dataclass(frozen=True)
class Draft:
    """n tokens; node i continues node `parents[i]` < i, or the text itself if that is -1."""

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    probabilities: Tensor | None = None  # (n, V) of a sampled chain; None: picked

    def __post_init__(self) -> None:
        orderly = all(ROOT <= parent < node for node, parent in enumerate(self.parents))
        if len(self.parents) != len(self.tokens) or not orderly:
            raise InputError(
                f"a draft of {len(self.tokens)} tokens has parents {self.parents}: give one for "
                "each token, -1 or the number of a token before it"
            )
        if self.probabilities is not None and not self.is_chain:
            raise InputError(
                "a tree's tokens cannot be verified as draws, which are a chain: leave out "
                "probabilities, and the target draws for itself"
            )

    @classmethod
    def chain(cls, tokens: Sequence[int], probabilities: Tensor | None = None) -> Draft:
        return cls(tuple(tokens), tuple(range(-1, len(tokens) - 1)), probabilities)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        return self.parents == tuple(range(-1, len(self.tokens) - 1))

    def children(self) -> dict[tuple[int, int], int]:
        """(parent, token) -> node; the last one for duplicates."""
        return {pair: node for node, pair in enumerate(zip(self.parents, self.tokens))}

    @property
    def depth(self) -> int:
        """The length of the longest path."""
        depths = [0]
        for parent in self.parents:
            depths.append(1 + depths[1 + parent])
        return max(depths)

    def first(self, count: int) -> Draft:
        """Its first `count` nodes, again a tree, as parents come before children."""
        if count >= len(self.tokens):
            return self
        p = None if self.probabilities is None else self.probabilities[:count]
        return Draft(self.tokens[:count], self.parents[:count], p)


class Proposer(Protocol):
    def propose(self, requests: Sequence[Asked]) -> list[Draft]:
        """A draft for each request; empty if it has none. A proposer with state finds out from
        `tokens` what was accepted: accepted tokens are in the text."""

    def forget(self, key: Hashable) -> None:
        """Drops a finished request's state."""


def chosen(asked: Asked, logits: Tensor) -> tuple[int, Tensor | None]:
    """logits (V,) -> the next draft token, and (V,) its distribution: None if picked."""
    if asked.parameters.greedy:
        return int(logits.argmax()), None
    logits = shaped(logits[None].float().cpu(), asked.parameters)  # (1, V)
    uniform = torch.rand(1, generator=asked.generator)
    return int(draw(logits, uniform)), logits[0].softmax(dim=-1)


def drawn(tokens: Sequence[int], probabilities: Sequence[Tensor | None]) -> Draft:
    """The chain of consecutive results of `chosen`."""
    picked = not probabilities or probabilities[0] is None
    return Draft.chain(tokens, None if picked else torch.stack(list(probabilities)))


def check_vocabulary(proposer: Proposer, target: Transformer) -> None:
    """InputError for a draft model whose vocabulary does not fit the target's, ahead of use."""
    known, vocabulary = getattr(proposer, "vocab_size", None), target.config.vocab_size
    if known not in (None, vocabulary):
        raise InputError(
            f"the draft model knows {known:,} tokens and its target {vocabulary:,}: draft with a "
            "model of the same tokenizer"
        )


def check_drafts(drafts: Sequence[Draft], most: Sequence[int], vocabulary: int) -> None:
    """InputError for drafts that are too long or outside the target's vocabulary."""
    if len(drafts) != len(most):
        raise InputError(
            f"{len(most)} requests were asked about and {len(drafts)} drafts came: give one for "
            "each, Draft() where there is no idea"
        )
    for draft, limit in zip(drafts, most):
        if len(draft.tokens) > limit:
            raise InputError(
                f"a draft of {len(draft.tokens)} tokens came where {limit} were asked for: give "
                "`most` at most"
            )
        if draft.tokens and not 0 <= min(draft.tokens) <= max(draft.tokens) < vocabulary:
            raise InputError(
                f"a draft of {list(draft.tokens)} came for a target that knows tokens 0 to "
                f"{vocabulary - 1}: draft with a model of the same tokenizer"
            )
