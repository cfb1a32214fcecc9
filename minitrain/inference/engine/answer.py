"""Answers: tokens drawn from a step's logits, their text, and the ends of requests."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from minitrain.inference.engine.request import Request, Times
from minitrain.inference.engine.scheduler import Work
from minitrain.inference.sampling import NO_NUMBERS, Drawn, sample


@dataclass(frozen=True)
class Output:
    """One token of one request, or its end. `text` is the newly final text, if the engine decodes;
    a token's text may come with a later token, and a stop string's text is never returned."""

    id: str
    drawn: Drawn | None = None  # None: it ended without another token
    text: str = ""
    finish_reason: str | None = None  # "length", "stop", "cancelled" or "error", on the last one
    times: Times | None = None  # on the last one
    cached_tokens: int = 0  # prompt tokens found in the cache, not computed; on the last one
    error: str | None = None  # if it ended with an error: which request, and why


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

    @property
    def tokens_a_pass(self) -> float:
        """Mean number of tokens per forward pass: above 1 if drafts were accepted."""
        return len(self.drawn) / max(1, len(set(self.times.tokens)))

    def extend(self, output: Output) -> None:
        self.text += output.text
        if output.drawn is not None:
            self.drawn.append(output.drawn)
        self.finish_reason, self.times = output.finish_reason, output.times
        self.error = output.error


def draw_answers(sampled: Sequence[Work], logits: Tensor, now: float) -> list[Output]:
    """logits (M, V), one row each -> outputs; the tokens are appended to their requests. The
    caller finishes requests that have ended."""
    requests = [work.request for work in sampled]
    return [append_token(one, drawn, now) for one, drawn in zip(requests, sample(logits, requests))]


def append_token(request: Request, drawn: Drawn | None, now: float) -> Output:
    """Adds one token to a request's answer, and ends it if the token does."""
    if drawn is None:
        return failing(request, f"it got {NO_NUMBERS}")
    try:
        return _append(request, drawn, now)
    except Exception as error:  # from `decode`, which the caller supplies
        reason = f"its text could not be decoded ({type(error).__name__}: {error})"
        return failing(request, reason, error)


def failing(request: Request, reason: str, error: Exception | None = None) -> Output:
    """Ends a request that cannot continue, while the others do."""
    words = f"request '{request.id}' ended with an error: {reason}"
    logging.getLogger("minitrain").error(words, exc_info=error)
    return replace(ending(request, None, "", "error"), error=words)


def _append(request: Request, drawn: Drawn, now: float) -> Output:
    stream = request.text
    if drawn.token in request.ends:
        text = "" if stream is None else stream.finish()
        return ending(request, None, text, "stop")
    request.tokens.append(drawn.token)
    request.times.tokens.append(now)
    text = "" if stream is None else stream.push(drawn.token)
    if stream is not None and stream.stopped:
        return ending(request, drawn, text, "stop")
    if request.num_left <= 0:
        text += "" if stream is None else stream.finish()
        reason = "stop" if stream is not None and stream.stopped else "length"
        return ending(request, drawn, text, reason)
    return Output(request.id, drawn, text)


def ending(request: Request, drawn: Drawn | None, text: str, reason: str) -> Output:
    """The last output. Only cached prompt tokens count: a preempted request may find more."""
    cached = min(request.num_cached_tokens, len(request.prompt))
    return Output(request.id, drawn, text, reason, request.times, cached)
