"""Drafts in a step's plan: a request's tokens, followed by guesses that one pass verifies.

    budget 8    A | a a a     B | b b     C        A and B have drafts of 3 and 2, C has none

A draft yields to everything else: each request's own next token comes first, and if blocks are
missing the draft is dropped before any request is preempted. A tree's nodes are stored one after
the other behind the text; the accepted path is compacted afterwards (PagedCache.keep).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minitrain.inference.cache.blocks import Copies
from minitrain.inference.cache.paged import Part
from minitrain.inference.engine.request import Request
from minitrain.inference.engine.scheduler import Plan, Scheduler, Work
from minitrain.inference.speculation.plain import tree_attention
from minitrain.inference.speculation.proposer import Draft

NONE = Draft()


@dataclass(frozen=True)
class DraftWork(Work):
    """The last of `tokens` are the draft's, and `samples` is the draft's length + 1."""

    draft: Draft

    @property
    def part(self) -> Part:
        """A tree's nodes have their depths as positions, and each sees its ancestors."""
        if self.draft.is_chain:
            return super().part
        known = self.count - len(self.draft)
        parents = [*range(-1, known - 1), *(known + parent for parent in self.draft.parents)]
        seen, places = tree_attention(parents, 0)  # of the new tokens
        positions = (self.start + places).tolist()
        return Part(self.request.table.blocks, self.start, self.count, positions, seen)


def draft_of(work: Work) -> Draft:
    return work.draft if isinstance(work, DraftWork) else NONE


class DraftScheduler(Scheduler):
    """`drafts` are for the next step, for running requests with only one token to compute."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.drafts: dict[Request, Draft] = {}

    def schedule(self) -> Plan:
        plan = super().schedule()
        self.drafts = {}
        return plan

    def _next(self, request: Request, left: int, behind: int) -> tuple[Work, Copies | None]:
        draft = self.drafts.pop(request, NONE)  # once: a retry has no draft
        known = request.tokens[request.num_computed_tokens :]
        draft = draft.first(max(0, left - len(known) - behind))
        if len(draft):
            start, tokens = request.num_computed_tokens, [*known, *draft.tokens]
            copies = self.blocks.grow(request.table, start, start + len(tokens))
            if copies is not None:
                return DraftWork(request, start, tokens, 1 + len(draft), draft), copies
        return super()._next(request, left, behind)

    def computed(self, work: Work, kept: int = 0) -> None:
        """`kept` of the draft's tokens were accepted, and are now in the request's; positions of
        rejected ones are not counted, and are overwritten."""
        num_computed = work.start + work.count - len(draft_of(work)) + kept
        self.blocks.truncate(work.request.table, num_computed)
        self._advance(work.request, num_computed)
