"""Latency and goodput: how long users wait, and how many of them are served in time.

    request sent ──── queue, prefill ────▶ first token ─▶ token ─▶ token ─▶ … ─▶ last
                 first token (TTFT)       between tokens (TBT)
                 └───────────────────────── end to end ─────────────────────────┘

Throughput alone is the server's view: a long queue keeps it busy. *Goodput* counts, in a second,
the requests whose first token came in time and whose tokens then came, in the mean, at the pace
promised. Paper: Zhong et al., DistServe, arXiv 2401.09670, section 2.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minitrain.inference.engine.metrics import Latency, latency
from minitrain.inference.engine.request import Times


@dataclass(frozen=True)
class Target:
    """Seconds, at most, to the first token, and in the mean from each token to the next."""

    first_token: float
    per_token: float


@dataclass(frozen=True)
class Told:
    """The result of one request. Over HTTP several tokens may arrive in one piece, so `tokens` may
    exceed the number of `times`."""

    times: Times
    prompt_tokens: int
    tokens: int
    failed: str | None = None  # why, in words
    late: float = 0.0  # seconds after its time at which the client sent it

    @property
    def per_token_seconds(self) -> float:
        """In the mean, after the first (TPOT); 0 where all came at once."""
        came = self.times.tokens
        return (came[-1] - came[0]) / (self.tokens - 1) if len(came) > 1 else 0.0

    def met(self, target: Target) -> bool:
        first = self.times.first_token_seconds
        return (
            self.failed is None
            and first is not None
            and first <= target.first_token
            and self.per_token_seconds <= target.per_token
        )


@dataclass(frozen=True)
class Summary:
    """Statistics of all requests at one rate, from the first arrival to the last answer's end.

    Tokens are those of complete answers, percentiles too; a failed request has missed its target.
    """

    requests: int
    failed: dict[str, int]  # how many, by why
    seconds: float
    prompt_tokens: int
    new_tokens: int
    latency: Latency
    met: int
    late: float  # of the client, at worst

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds

    @property
    def goodput(self) -> float:
        """Requests a second that met their target."""
        return self.met / self.seconds


def summary(told: Sequence[Told], target: Target) -> Summary:
    """Summarizes one or more requests."""
    complete = [one for one in told if one.failed is None]
    return Summary(
        requests=len(told),
        failed=dict(Counter(one.failed for one in told if one.failed is not None)),
        seconds=span(one.times for one in told),
        prompt_tokens=sum(one.prompt_tokens for one in complete),
        new_tokens=sum(one.tokens for one in complete),
        latency=latency([one.times for one in complete]),
        met=sum(one.met(target) for one in told),
        late=max(one.late for one in told),
    )


def span(times: Iterable[Times]) -> float:
    """Seconds from the first arrival to the last end."""
    times = list(times)
    return max(one.ended for one in times) - min(one.arrived for one in times)
