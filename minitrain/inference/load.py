"""Traffic for an engine or a server, and the latency that its users see.

Requests arrive independently, so arrivals are a Poisson process: gaps are exponential with mean
1 / rate. The load is *open*: a request arrives at its time whether the server keeps up or not.
(A client that sends its next request after the last answer slows down with the server, and so
never sees the queue that it meant to measure.)

    rate 2/s   |a    |b |c        |d  |e     |f        seconds →
               prompts: [shared prefix 0|own a] [prefix 1|own b] [prefix 0|own c] …

Lengths determine the result: a trace's are read from a file, in order, and start over at its end.
Each rate uses different tokens: with the same ones, a server with a prefix cache would already have
computed the second rate's prompts during the first.

    request sent ──── queue, prefill ────▶ first token ─▶ token ─▶ token ─▶ … ─▶ last
                 first token (TTFT)       between tokens (TBT)
                 └───────────────────────── end to end ─────────────────────────┘

Throughput alone is the server's view: a long queue keeps it busy. *Goodput* counts the requests per
second whose first token came in time and whose later tokens came, on average, at the promised
pace. Paper: Zhong et al., DistServe, arXiv 2401.09670, section 2.
"""

from __future__ import annotations

import csv
import math
import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, islice
from pathlib import Path

import numpy as np

from minitrain.errors import InputError
from minitrain.inference.engine.request import Times

Lengths = tuple[int, int]  # tokens of a prompt, and of its answer
Range = tuple[int, int]  # both ends included
SPECIAL = 3  # the first tokens of most vocabularies are special
COLUMNS = {  # our column names, and those of the Azure LLM service traces
    "prompt": ("prompt_tokens", "ContextTokens"),
    "answer": ("new_tokens", "GeneratedTokens"),
}


@dataclass(frozen=True)
class Ask:
    """A request `at` seconds from the start, for `new_tokens` tokens after `prompt`."""

    at: float
    prompt: tuple[int, ...]
    new_tokens: int


def lengths_in(count: int, prompt: Range, new: Range, seed: int) -> list[Lengths]:
    """`count` pairs, each length uniform over its range."""
    chance = random.Random(f"lengths {seed}")
    return [(chance.randint(*prompt), chance.randint(*new)) for _ in range(count)]


def lengths_of_trace(path: str | os.PathLike, count: int, scale: float = 1.0) -> list[Lengths]:
    """The first `count` rows of a CSV file, times `scale`, starting over at its end."""
    path = Path(path)
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        names = [column(path, what, reader.fieldnames or []) for what in COLUMNS]
        rows = []
        for row in islice(reader, count):
            rows.append(tuple(length(path, reader.line_num, row[name]) for name in names))
    if not rows:
        raise InputError(f"{path} has no row below its head: a trace has one for each request")
    scaled = [tuple(max(1, round(tokens * scale)) for tokens in row) for row in rows]
    return list(islice(cycle(scaled), count))


def column(path: Path, what: str, there: Sequence[str]) -> str:
    names = COLUMNS[what]
    found = [name for name in names if name in there]
    if not found:
        raise InputError(
            f"{path} has no column for the {what}'s tokens: name it {' or '.join(names)}"
        )
    return found[0]


def length(path: Path, line: int, text: str | None) -> int:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 <= value <= 10**7:
        raise InputError(f"{path}, line {line}: {text!r:.40} is no number of tokens")
    return round(value)


def arrivals(count: int, rate: float, seed: int) -> list[float]:
    """Arrival times in seconds, the first at 0; all at once if `rate` is inf."""
    chance = random.Random(f"arrivals {seed}")
    gaps = [chance.expovariate(1.0) / rate for _ in range(count - 1)]
    return list(accumulate(gaps, initial=0.0))


def asks(
    lengths: Sequence[Lengths],
    rate: float,
    vocabulary: int,
    seed: int,
    shared: int = 0,
    prefixes: int = 1,
) -> list[Ask]:
    """A request for each of `lengths`, `rate` of them a second; each prompt starts with one of
    `prefixes` shared beginnings of `shared` tokens. The same arguments give the same requests."""
    if vocabulary <= SPECIAL:
        raise InputError(
            f"a vocabulary of {vocabulary} has no words: give {SPECIAL + 1} tokens or more"
        )
    chance = random.Random(f"prompts {seed} {rate}")

    def words(count: int) -> list[int]:
        return chance.choices(range(SPECIAL, vocabulary), k=count)

    beginnings = [words(shared) for _ in range(prefixes)]
    return [
        Ask(at, (*chance.choice(beginnings), *words(prompt)), new)
        for at, (prompt, new) in zip(arrivals(len(lengths), rate, seed), lengths)
    ]


@dataclass(frozen=True)
class Target:
    """Latency targets: seconds to the first token, and mean seconds between tokens."""

    first_token: float
    per_token: float


@dataclass(frozen=True)
class Outcome:
    """The result of one request. Over HTTP several tokens may arrive in one piece, so `tokens` may
    exceed the number of `times`."""

    times: Times
    prompt_tokens: int
    tokens: int
    failed: str | None = None  # the reason, in words
    late: float = 0.0  # seconds by which the client was late in sending it

    @property
    def per_token_seconds(self) -> float:
        """Mean seconds per token after the first (TPOT); 0 if all came at once."""
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
class Latency:
    """Percentiles over requests, in seconds; of `between_tokens`, over all pairs of tokens."""

    queue: dict[int, float]
    first_token: dict[int, float]
    between_tokens: dict[int, float]
    total: dict[int, float]


def latency(times: Iterable[Times], percentiles: tuple[int, ...] = (50, 90, 99)) -> Latency:
    """Latencies of finished requests; a percentile of nothing is nan."""
    times = list(times)
    between = [gap for one in times for gap in one.between_tokens_seconds]

    def of(values: list[float | None]) -> dict[int, float]:
        known = [value for value in values if value is not None]
        return {p: float(np.percentile(known, p)) if known else float("nan") for p in percentiles}

    return Latency(
        queue=of([one.queue_seconds for one in times]),
        first_token=of([one.first_token_seconds for one in times]),
        between_tokens=of(between),
        total=of([one.total_seconds for one in times]),
    )


@dataclass(frozen=True)
class Summary:
    """Statistics of all requests at one rate, from the first arrival to the last answer's end.

    Tokens and percentiles are of complete answers; a failed request has missed its target.
    """

    requests: int
    failed: dict[str, int]  # counts by reason
    seconds: float
    prompt_tokens: int
    new_tokens: int
    latency: Latency
    met: int
    late: float  # maximum lateness of the client

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds

    @property
    def goodput(self) -> float:
        """Requests per second that met their target."""
        return self.met / self.seconds


def summary(outcomes: Sequence[Outcome], target: Target) -> Summary:
    """Summarizes one or more requests."""
    times = [one.times for one in outcomes]
    complete = [one for one in outcomes if one.failed is None]
    return Summary(
        requests=len(outcomes),
        failed=dict(Counter(one.failed for one in outcomes if one.failed is not None)),
        seconds=max(one.ended for one in times) - min(one.arrived for one in times),
        prompt_tokens=sum(one.prompt_tokens for one in complete),
        new_tokens=sum(one.tokens for one in complete),
        latency=latency([one.times for one in complete]),
        met=sum(one.met(target) for one in outcomes),
        late=max(one.late for one in outcomes),
    )
