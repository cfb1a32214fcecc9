"""Slow ranks, found by their compute time *before* a collective, in which all ranks wait.

    rank 0   ██ compute ██|···· waits ····|        step times are equal: 3 and 3
    rank 1   ███████ compute ███████|        |     compute times are not: 1 and 3

A rank is slow if it takes `factor` times the ranks' median, and 5 deviations more than that (by the
median absolute deviation, which one slow rank does not move), in the median of several steps: a
pause of Python's garbage collector slows one step, of one rank or another (MegaScale, arXiv
2402.15627, section 6.3). Cost: 8 bytes a rank, once every `every` steps. Lab: e12.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import torch

from minitrain.errors import InputError
from minitrain.measure.traffic import length, union
from minitrain.ranks.group import Group
from minitrain.reliability.events import EventLog

DEVIATIONS = 5.0
TO_DEVIATION = 1.4826  # of normal values, over their median absolute deviation


def slow_ranks_naive(step_seconds: Sequence[float], factor: float = 1.1) -> list[int]:
    """Compares whole steps: all ranks wait for the slowest, so none is ever slower than others."""
    median = statistics.median(step_seconds)
    return [rank for rank, seconds in enumerate(step_seconds) if seconds > factor * median]


def slow_ranks(compute_seconds: Sequence[float], factor: float = 1.1) -> list[int]:
    """Compares each rank's compute time before it waited, in seconds."""
    median = statistics.median(compute_seconds)
    spread = statistics.median(abs(seconds - median) for seconds in compute_seconds)
    limit = max(factor * median, median + DEVIATIONS * TO_DEVIATION * spread)
    return [rank for rank, seconds in enumerate(compute_seconds) if seconds > limit]


class StragglerWatch:
    """A callback for `train`, on every rank: `log` gets an event "slow" for each slow rank.

    `slow`: those found last. With two ranks there is no useful median: each is compared with the
    faster one.
    """

    def __init__(
        self, group: Group, log: EventLog | None = None, every: int = 20, factor: float = 1.1
    ) -> None:
        if every < 1 or not factor > 1:
            raise InputError(f"every={every}, factor={factor}: give 1 or more, and over 1")
        self.group, self.log, self.every, self.factor = group, log, every, factor
        self.slow: list[int] = []
        self._computed: list[float] = []
        self._since, self._seen = group.now(), len(group.trace.ops)

    def __call__(self, record: object) -> None:
        now, ops = self.group.now(), self.group.trace.ops
        waits = union((op.waited, op.done) for op in ops[self._seen :] if op.done is not None)
        self._computed.append(now - self._since - length(waits))
        if len(self._computed) == self.every:
            self._look(getattr(record, "step", None))
        self._since, self._seen = self.group.now(), len(ops)

    def _look(self, step: int | None) -> None:
        group = self.group
        mine = torch.tensor([statistics.median(self._computed)], dtype=torch.float64)
        self._computed.clear()
        everyone = torch.empty(group.size, dtype=torch.float64, device=group.device)
        seconds = group.all_gather(everyone, mine.to(group.device)).tolist()
        measured = [*seconds, min(seconds)] if group.size == 2 else seconds
        self.slow = slow_ranks(measured, self.factor)
        median = statistics.median(measured)
        if group.rank in self.slow and self.log is not None:
            self.log.of(group.rank).write("slow", step, seconds=seconds[group.rank], median=median)
