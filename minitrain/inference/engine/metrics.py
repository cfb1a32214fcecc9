"""The cost of a step, and percentiles of the time that requests waited."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from minitrain.inference.engine.request import Times


@dataclass(frozen=True)
class StepMetrics:
    seconds: float
    requests: int  # in the step's batch
    tokens: int  # computed
    sampled: int  # told
    drafted: int  # of the tokens computed, guesses
    kept: int  # and of those, told
    waiting: int
    preemptions: int
    blocks_used: int
    bytes_used: int  # of keys and values in them, on this rank
    empty_places: int  # in used blocks
    hit_rate: float  # of all tokens admitted so far, found in the prefix cache


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
