"""Drafts for an engine: any batch of requests speculates, whoever is in it, with any proposer.

    engine = Engine(model, num_blocks=256, proposer=EngineDrafts(DraftModel(draft, rows=64)))
    engine = Engine(model, num_blocks=256, proposer=EngineDrafts(Medusa(heads, branches), 12))

Before each step the engine asks for drafts, reads them with all its other tokens, and draws each
request's own tokens along them (engine/answer.py): so the answers are, token for token and at every
temperature, those without drafts, through preemptions, shared prefixes and stops. Drafts are then
picked, each the draft model's likeliest token, and kept with probability p. With `drawn` they are
drawn as the request draws, and judged by exact rejection: kept with probability Σ min(p, q), in the
same distribution, but the text depends on the drafts, and so on company and preemptions as well.

What was kept is seen from the text when the request comes again. Heads upon the target's hidden
vectors get those of every token that the engine has computed for this request: of a prefix that was
found in the cache there are none, and the head begins behind it. More requests in a batch leave
less to gain, since the engine's pass is then no longer bound by reading weights: lengths adapt to
what costs say.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.length import FixedLength, Length
from minitrain.inference.speculation.proposer import ROOT, Asked, Draft, Proposer
from minitrain.inference.speculation.tree import children, depths

GREEDY = SamplingParameters()


class Served(Protocol):
    """The part of an engine's request that drafting reads."""

    id: str
    tokens: list[int]
    parameters: SamplingParameters
    generator: torch.Generator


class EngineDrafts:
    """Adapts a proposer of this room to `Engine(proposer=…)`. `length`: most tokens of a draft, or
    nodes of a tree."""

    def __init__(self, proposer: Proposer, length: int | Length = 4, drawn: bool = False) -> None:
        self.proposer, self.drawn = proposer, drawn
        self.vocab_size = getattr(proposer, "vocab_size", None)
        self.length = FixedLength(length) if isinstance(length, int) else length
        self.open: dict[Hashable, tuple[int, Draft]] = {}  # where a draft began, and it
        self.unshown: dict[Hashable, Unshown] = {}

    def propose(self, requests: Sequence[Served], most: Sequence[int]) -> list[Draft]:
        for request in requests:
            self._observe(request)
        counts = [min(self.length.next(one.id), limit) for one, limit in zip(requests, most)]
        asked = [self._asked(one, n) for one, n in zip(requests, counts) if n > 0]
        found = iter(self.proposer.propose(asked) if asked else ())
        drafts = [next(found) if count > 0 else Draft() for count in counts]
        self.open |= {one.id: (len(one.tokens), each) for one, each in zip(requests, drafts)}
        return drafts

    def read(self, request: Served, start: int, hidden: Tensor) -> None:
        unshown = self.unshown.get(request.id)
        if unshown is None or unshown.end != start:  # it was preempted, and is read again
            unshown = self.unshown[request.id] = Unshown(start)
        unshown.add(hidden)

    def forget(self, id: str) -> None:
        self.open.pop(id, None)
        self.unshown.pop(id, None)
        self.proposer.forget(id)
        self.length.forget(id)

    def _asked(self, request: Served, most: int) -> Asked:
        unshown = self.unshown.get(request.id)
        known = unshown is not None and unshown.end == len(request.tokens) - 1
        hidden = unshown.take() if known else torch.empty(0, 0)
        parameters = request.parameters if self.drawn else GREEDY
        return Asked(request.id, request.tokens, most, parameters, hidden, request.generator)

    def _observe(self, request: Served) -> None:
        """Records the outcome of the last draft, as far as the text shows it."""
        start, draft = self.open.pop(request.id, (0, None))
        if draft is not None:
            told = request.tokens[start:]
            drafted = min(max(depths(draft.parents), default=0), len(told))
            self.length.observe(request.id, drafted, min(drafted, _followed(draft, told)))


class Unshown:
    """The head's inputs at a request's tokens, up to place `end`, since they were last taken."""

    def __init__(self, start: int) -> None:
        self.end = start
        self.parts: list[Tensor] = []

    def add(self, hidden: Tensor) -> None:
        self.parts.append(hidden)
        self.end += len(hidden)

    def take(self) -> Tensor:
        """(n, D); n is 0 where it was just taken."""
        hidden = torch.cat(self.parts) if self.parts else torch.empty(0, 0)
        self.parts = []
        return hidden


def _followed(draft: Draft, told: Sequence[int]) -> int:
    """The number of draft tokens that the text follows."""
    under, at = children(draft.tokens, draft.parents), ROOT
    for depth, token in enumerate(told):
        if (at, token) not in under:
            return depth
        at = under[at, token]
    return len(told)
