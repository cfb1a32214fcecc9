"""What requests are told: tokens drawn from a step's logits, drafts verified, ends found.

A request with k drafts has logits at k + 1 places. Its token is drawn at the first; if that is the
first draft, the logits at the second place are those of the text as it now stands, and so on:

    drafts    was    a    big            drawn    was    a    little        2 right, 3 told
    logits after  there  was   a   big            =      =      ≠

Each token is drawn from the model's own distribution, by the request's own generator, so whoever
guesses and however badly: the answer is, token for token, the one without guesses.
(Leviathan et al., arXiv 2211.17192, accept more of a guess that comes with its probabilities.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from minitrain.inference.engine.request import Request, Times
from minitrain.inference.engine.scheduler import Work
from minitrain.inference.sampler import Drawn, sample


@dataclass(frozen=True)
class Output:
    """One token of one request, or its end. `text` is what has become certain, where the engine
    decodes; a token's text may come with a later one, and a stop string's never does."""

    id: str
    drawn: Drawn | None = None  # None: it ended and was told no more
    text: str = ""
    finish_reason: str | None = None  # "length", "stop" or "cancelled", on the last output
    times: Times | None = None  # on the last one
    cached_tokens: int = 0  # of the prompt, that were found and not computed; on the last one


@dataclass
class Answer:
    """All of a request's outputs."""

    text: str = ""
    drawn: list[Drawn] = field(default_factory=list)
    finish_reason: str | None = None
    times: Times | None = None

    @property
    def tokens(self) -> list[int]:
        return [one.token for one in self.drawn]

    def extend(self, output: Output) -> None:
        self.text += output.text
        if output.drawn is not None:
            self.drawn.append(output.drawn)
        self.finish_reason, self.times = output.finish_reason, output.times


def draw_answers(
    sampled: Sequence[Work], logits: Tensor, now: float
) -> tuple[list[Output], dict[str, int]]:
    """logits (M, V), `samples` rows for each -> outputs, and by id how many drafts were right.

    The tokens are appended to their requests; who has ended is for the caller to finish.
    """
    outputs: list[Output] = []
    right = {work.request.id: 0 for work in sampled}
    going_on, row = [], 0
    for work in sampled:
        going_on.append((work.request, row))
        row += work.samples
    while going_on:
        requests = [request for request, _ in going_on]
        rows = [row for _, row in going_on]
        drawn = sample(logits if len(rows) == len(logits) else logits[rows], requests)
        told = [tell(request, one, now) for request, one in zip(requests, drawn)]
        outputs += told
        following = []
        for (request, row), output in zip(going_on, told):
            drafts, known = request.drafts, right[request.id]
            if output.finish_reason is None and drafts[known : known + 1] == [output.drawn.token]:
                right[request.id] += 1
                following.append((request, row + 1))
        going_on = following
    return outputs, right


def tell(request: Request, drawn: Drawn, now: float) -> Output:
    """Adds one token to a request's answer, and says whether it ends with it."""
    stream, parameters = request.text, request.parameters
    if drawn.token in parameters.stop_tokens:
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
