"""An engine with speculative decoding, and `speculate`, which generates with drafts in one call.

    speculate(target, DraftModel(draft), [tokens], SamplingParameters(64))[0].tokens
    drafts = EngineDrafts(Medusa(heads, branches), length=12)
    engine = SpeculativeEngine(model, num_blocks=256, proposer=drafts)

Before each step the engine asks for drafts, computes them with all its other tokens, and draws
each request's tokens, accepting those drafts that match (answers.py):

    text      Once upon a | time there was          the target has read all but the last token
    pass      a · time there was                    reads it and the draft: 4 rows of logits
    answer    accepts "time there", replaces "was" by "lived": three tokens in one pass
    caches    cut after "there": the target's now, a draft model's at its next call

So the answers are, token for token and at every temperature, those without drafts, through
preemptions, shared prefixes and stops. Draft tokens are then picked, each the draft model's
likeliest, and accepted with probability p. With `drawn` they are sampled like the request's, and
verified by exact rejection: accepted with probability Σ min(p, q), in the same distribution, but
the text depends on the drafts, and so also on the batch and on preemptions.

A proposer sees in the text what was accepted. Heads on the target's hidden vectors get those of
every token that the engine has computed for this request: a prefix found in the cache has none, and
the head starts after it. Larger batches leave less to gain, since the engine's pass is then no
longer bound by reading weights: an adaptive length follows the costs.
Paper: Leviathan et al., arXiv 2211.17192. Shapes: B requests  n tokens  D width.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from minitrain.inference.engine.answer import Answer, Output
from minitrain.inference.engine.engine import Engine
from minitrain.inference.engine.request import Request
from minitrain.inference.engine.runner import Pass
from minitrain.inference.engine.scheduler import Plan
from minitrain.inference.parameters import SamplingParameters
from minitrain.inference.speculation.answers import draw_answers
from minitrain.inference.speculation.length import FixedLength, Length
from minitrain.inference.speculation.proposer import (
    Asked,
    Draft,
    Proposer,
    check_drafts,
    check_vocabulary,
)
from minitrain.inference.speculation.scheduler import DraftScheduler, draft_of
from minitrain.model.transformer import Transformer

GREEDY = SamplingParameters()
BLOCK = 16


class EngineDrafts:
    """A proposer with its view of an engine's requests. `length`: the maximum number of tokens of a
    draft, or nodes of a tree."""

    def __init__(self, proposer: Proposer, length: int | Length = 4, drawn: bool = False) -> None:
        self.proposer, self.drawn = proposer, drawn
        self.length = FixedLength(length) if isinstance(length, int) else length
        self.unshown: dict[Hashable, tuple[int, list[Tensor]]] = {}  # end position, and (n, D) each

    def propose(
        self, requests: Sequence[Request], most: Sequence[int], vocabulary: int
    ) -> list[Draft]:
        """For each request, a chain or tree of up to `most` tokens that may follow its own."""
        counts = [min(self.length.next(one.id), limit) for one, limit in zip(requests, most)]
        asked = [self._asked(one, n) for one, n in zip(requests, counts) if n > 0]
        found = self.proposer.propose(asked) if asked else []
        check_drafts(found, [one.most for one in asked], vocabulary)
        rest = iter(found)
        return [next(rest) if count > 0 else Draft() for count in counts]

    def read(self, request: Request, start: int, hidden: Tensor) -> None:
        """Keeps hidden (n, D), the head's inputs at the request's tokens from `start` on, until the
        proposer's next call."""
        end, parts = self.unshown.get(request.id, (start, []))
        if end != start:  # it was preempted, and is recomputed
            parts = []
        self.unshown[request.id] = start + len(hidden), [*parts, hidden]

    def forget(self, id: str) -> None:
        self.unshown.pop(id, None)
        self.proposer.forget(id)
        self.length.forget(id)

    def _asked(self, request: Request, most: int) -> Asked:
        end, parts = self.unshown.get(request.id, (0, []))
        hidden = torch.empty(0, 0)
        if parts and end == len(request.tokens) - 1:
            hidden, self.unshown[request.id] = torch.cat(parts), (end, [])
        parameters = request.parameters if self.drawn else GREEDY
        return Asked(request.id, request.tokens, most, parameters, hidden, request.generator)


class SpeculativeEngine(Engine):
    """An `Engine`, with its arguments, whose requests have drafts from `proposer`."""

    scheduler_class = DraftScheduler
    scheduler: DraftScheduler

    def __init__(
        self, model: Transformer, *sizes: int, proposer: EngineDrafts, **options: Any
    ) -> None:
        check_vocabulary(proposer.proposer, model)
        super().__init__(model, *sizes, **options)
        self.proposer = proposer

    def _prepare(self) -> None:
        """Makes drafts for requests with one token to compute, never past the answer's end."""
        asked = {
            request: request.num_left - 1
            for request in self.scheduler.running
            if request.num_computed_tokens == len(request.tokens) - 1 and request.num_left > 1
        }
        if asked:
            most, vocabulary = list(asked.values()), self.config.vocab_size
            drafts = self.proposer.propose(list(asked), most, vocabulary)
            self.scheduler.drafts = dict(zip(asked, drafts))

    def _answer(self, plan: Plan, read: Pass) -> list[Output]:
        """Draws the answers and keeps only accepted draft tokens in the cache: a tree's path is
        compacted, as if it had been a chain."""
        outputs, paths = draw_answers(read.sampled, read.logits, self.clock())
        for work in plan.work:
            request, draft, path = work.request, draft_of(work), paths.get(work.request.id, [])
            known = work.count - len(draft)
            places = [*range(known), *(known + node for node in path)]
            self.runner.cache.keep(request.table.blocks, work.start, places)
            self.proposer.read(request, work.start, read.hidden[read.rows[request.id]][places])
            if work.samples:
                self.proposer.length.observe(request.id, draft.depth, len(path))
            self.scheduler.computed(work, len(path))
        return outputs

    def _end(self, request: Request, reason: str) -> None:
        super()._end(request, reason)
        self.proposer.forget(request.id)


def speculate(
    target: Transformer,
    proposer: Proposer,
    prompts: Sequence[Sequence[int]],
    parameters: SamplingParameters | Sequence[SamplingParameters] = GREEDY,
    length: int | Length = 4,
) -> list[Answer]:
    """The target's own answers, all in one batch, with drafts of at most `length` tokens: at
    temperature 0 token for token, else in distribution. `parameters`: for all, or per prompt."""
    drafts = EngineDrafts(proposer, length, drawn=True)
    each = [parameters] if isinstance(parameters, SamplingParameters) else parameters
    longest = max(map(len, prompts), default=0) + max(one.max_new_tokens for one in each)
    blocks = max(1, len(prompts)) * (-(-longest // BLOCK))
    engine = SpeculativeEngine(
        target,
        blocks,
        BLOCK,
        budget=max(512, len(prompts) * (drafts.length.most + 1)),
        max_running=max(1, len(prompts)),
        share_prefixes=False,
        proposer=drafts,
    )
    return engine.generate(prompts, parameters)
