"""Drafts for an engine: any batch of requests speculates, whoever is in it.

    engine = Engine(model, num_blocks=256, proposer=EngineDrafts(DraftModel(draft, rows=64)))

Before each step the engine asks for drafts, reads them with all its other tokens, and draws each
request's own tokens along them (engine/answer.py): so the answers are, token for token and at every
temperature, those without drafts, through preemptions, shared prefixes and stops. Drafts are picked
here, each the draft model's likeliest token, and kept with probability p; what was kept is seen
from the text when the request comes again. More requests in a batch leave less to gain, since the
engine's pass is then no longer bound by reading weights: lengths adapt to what costs say.

Heads upon the target's hidden vectors draft nothing here: an engine hands out tokens only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import torch

from minitrain.errors import InputError
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.drafts.model import common_length
from minitrain.inference.speculation.length import FixedLength, Length
from minitrain.inference.speculation.proposer import Asked, Proposer

GREEDY = SamplingParameters()


class Served(Protocol):
    """What is looked at of an engine's request."""

    id: str
    tokens: list[int]


class EngineDrafts:
    """What `Engine(proposer=…)` takes, of a proposer of this room."""

    def __init__(self, proposer: Proposer, length: int | Length = 4) -> None:
        self.proposer = proposer
        self.length = FixedLength(length) if isinstance(length, int) else length
        self.open: dict[Hashable, tuple[int, tuple[int, ...]]] = {}  # where a draft began, and it

    def propose(self, requests: Sequence[Served], most: Sequence[int]) -> list[tuple[int, ...]]:
        for request in requests:
            self._observe(request)
        counts = [min(self.length.next(one.id), limit) for one, limit in zip(requests, most)]
        nothing = torch.empty(0, 0)
        asked = [
            Asked(one.id, one.tokens, count, GREEDY, nothing)
            for one, count in zip(requests, counts)
            if count > 0
        ]
        found = iter(self.proposer.propose(asked) if asked else ())
        drafts = [next(found) if count > 0 else None for count in counts]
        if any(draft is not None and not draft.is_chain for draft in drafts):
            raise InputError("an engine reads chains of drafts: give a proposer without trees")
        tokens = [() if draft is None else draft.tokens for draft in drafts]
        self.open |= {one.id: (len(one.tokens), each) for one, each in zip(requests, tokens)}
        return tokens

    def forget(self, id: str) -> None:
        self.open.pop(id, None)
        self.proposer.forget(id)
        self.length.forget(id)

    def _observe(self, request: Served) -> None:
        """What came of the draft that it got the last time; as much of it as the text says."""
        start, draft = self.open.pop(request.id, (0, None))
        if draft is not None:
            told = request.tokens[start:]
            drafted = min(len(draft), len(told))
            self.length.observe(request.id, drafted, common_length(draft[:drafted], told))
