"""Answers: tokens drawn from a step's logits, drafts verified, ends found.

A request whose draft has n tokens has logits at n + 1 places. Its token is drawn at the first; if
that is a draft, the logits at that one's place are those of the text as it now stands, and so on:

    drafts    was    a    big            drawn    was    a    little        2 kept, 3 told
    logits after  there  was   a   big            =      =      ≠

Each token is drawn from the model's own distribution, by the request's own generator, so whoever
guesses and however badly: the answer is, token for token, the one without guesses. Of a tree's
rivals the one is kept that was drawn. A draft that comes with the probabilities that it was drawn
from is judged by them instead (speculation/verification.py): more of it is kept, the distribution
is the same, the text is another.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from minitrain.inference.engine.request import Request, Times
from minitrain.inference.engine.scheduler import Work
from minitrain.inference.logits import NO_NUMBERS, are_numbers
from minitrain.inference.sampler import Drawn, sample, with_log_probabilities
from minitrain.inference.speculation.chance import Chance
from minitrain.inference.speculation.judging import Case, judge
from minitrain.inference.speculation.proposer import ROOT
from minitrain.inference.speculation.tree import children


@dataclass(frozen=True)
class Output:
    """One token of one request, or its end. `text` is what has become certain, where the engine
    decodes; a token's text may come with a later one, and a stop string's never does."""

    id: str
    drawn: Drawn | None = None  # None: it ended and was told no more
    text: str = ""
    finish_reason: str | None = None  # "length", "stop", "cancelled" or "error", on the last one
    times: Times | None = None  # on the last one
    cached_tokens: int = 0  # of the prompt, that were found and not computed; on the last one
    error: str | None = None  # where it ends with one: which request, and why


@dataclass
class Answer:
    """All of a request's outputs."""

    text: str = ""
    drawn: list[Drawn] = field(default_factory=list)
    finish_reason: str | None = None
    times: Times | None = None
    error: str | None = None

    @property
    def tokens(self) -> list[int]:
        return [one.token for one in self.drawn]

    def extend(self, output: Output) -> None:
        self.text += output.text
        if output.drawn is not None:
            self.drawn.append(output.drawn)
        self.finish_reason, self.times = output.finish_reason, output.times
        self.error = output.error


Kept = dict[str, list[int]]  # by request: the nodes of its draft that were, in order


def draw_answers(sampled: Sequence[Work], logits: Tensor, now: float) -> tuple[list[Output], Kept]:
    """logits (M, V), `samples` rows for each -> outputs, and what was kept of the drafts.

    The tokens are appended to their requests; who has ended is for the caller to finish.
    """
    picked: list[tuple[Work, int]] = []  # and the first of its rows
    drawn, row = [], 0
    for work in sampled:
        (picked if work.draft.probabilities is None else drawn).append((work, row))
        row += work.samples
    outputs, kept = _draw_along(picked, logits, now)
    more, kept_of_drawn = _judge(drawn, logits, now) if drawn else ([], {})
    return outputs + more, kept | kept_of_drawn


def _draw_along(
    picked: Sequence[tuple[Work, int]], logits: Tensor, now: float
) -> tuple[list[Output], Kept]:
    """All requests' next tokens at once, then those whose token was a draft draw again there."""
    outputs: list[Output] = []
    kept: Kept = {work.request.id: [] for work, _ in picked}
    under = {w.request.id: children(w.draft.tokens, w.draft.parents) for w, _ in picked}
    going_on = [(work.request, first, ROOT) for work, first in picked]
    while going_on:
        requests = [request for request, _, _ in going_on]
        rows = [first + 1 + node for _, first, node in going_on]
        drawn = sample(logits if len(rows) == len(logits) else logits[rows], requests)
        told = [tell(request, one, now) for request, one in zip(requests, drawn)]
        outputs += told
        following = []
        for (request, first, node), output in zip(going_on, told):
            if output.finish_reason is None:
                child = under[request.id].get((node, output.drawn.token))
                if child is not None:
                    kept[request.id].append(child)
                    following.append((request, first, child))
        going_on = following
    return outputs, kept


def _judge(
    drawn: Sequence[tuple[Work, int]], logits: Tensor, now: float
) -> tuple[list[Output], Kept]:
    """Chains that were drawn, by exact rejection sampling."""
    cases = [
        Case(w.request, w.draft, logits[row : row + w.samples], Chance(w.request.generator))
        for w, row in drawn
    ]
    numbers = [bool(are_numbers(case.logits).all()) for case in cases]
    outputs = [tell(w.request, None, now) for (w, _), fine in zip(drawn, numbers) if not fine]
    kept: Kept = {}
    verdicts = judge([case for case, fine in zip(cases, numbers) if fine])
    drawn = [one for one, fine in zip(drawn, numbers) if fine]
    for (work, row), verdict in zip(drawn, verdicts):
        request, path = work.request, kept.setdefault(work.request.id, [])
        wanted = request.parameters.log_probabilities
        for place, token in enumerate(verdict.tokens):
            one = with_log_probabilities(token, logits[row + place], wanted)
            outputs.append(tell(request, one, now))
            if outputs[-1].finish_reason is not None:
                break
            path += verdict.path[place : place + 1]
    return outputs, kept


def tell(request: Request, drawn: Drawn | None, now: float) -> Output:
    """Adds one token to a request's answer, and says whether it ends with it."""
    if drawn is None:
        return failing(request, f"it got {NO_NUMBERS}")
    try:
        return _tell(request, drawn, now)
    except Exception as error:  # of `decode`, which is the caller's
        reason = f"its text could not be decoded ({type(error).__name__}: {error})"
        return failing(request, reason, error)


def failing(request: Request, reason: str, error: Exception | None = None) -> Output:
    """The end of a request that cannot go on, while the others do."""
    words = f"request '{request.id}' ended with an error: {reason}"
    logging.getLogger("minitrain").error(words, exc_info=error)
    return replace(ending(request, None, "", "error"), error=words)


def _tell(request: Request, drawn: Drawn, now: float) -> Output:
    stream, parameters = request.text, request.parameters
    if drawn.token in request.ends:
        text = "" if stream is None else stream.finish()
        return ending(request, None, text, "stop")
    request.tokens.append(drawn.token)
    request.times.tokens.append(now)
    text = "" if stream is None else stream.push(drawn.token)
    if stream is not None and stream.stopped:
        return ending(request, drawn, text, "stop")
    if request.num_told >= parameters.max_new_tokens:
        text += "" if stream is None else stream.finish()
        reason = "stop" if stream is not None and stream.stopped else "length"
        return ending(request, drawn, text, reason)
    return Output(request.id, drawn, text)


def ending(request: Request, drawn: Drawn | None, text: str, reason: str) -> Output:
    """After a preemption more than the prompt may have been found; that is not what was asked."""
    cached = min(request.num_cached_tokens, len(request.prompt))
    return Output(request.id, drawn, text, reason, request.times, cached)
