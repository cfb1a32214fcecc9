"""Track 3: a pipeline schedule as data, against a bound that no schedule beats.

Rank r takes F, B and W seconds for a microbatch (W the weights' gradients, which nobody waits for),
a message `send` seconds, and holds the activations of at most `live` microbatches, from F to W.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from minitrain.errors import InputError
from minitrain.parallel.pipeline.operations import Operation, Schedule
from minitrain.parallel.pipeline.timeline import Clocked, clocked, peak_live

KINDS = "FBW"


@dataclass(frozen=True)
class Pipeline:
    """`seconds[r]` is (F, B, W) of rank r."""

    name: str
    seconds: tuple[tuple[float, float, float], ...]
    microbatches: int
    live: int
    send: float = 0.0


def made(case: Pipeline, ranks: list) -> Schedule:
    """The schedule of these lists of (kind, microbatch); InputError for one that is incomplete,
    deadlocks, or holds too much."""
    m, p = case.microbatches, len(case.seconds)
    if len(ranks) != p:
        raise InputError(f"{len(ranks)} lists for {p} ranks: give one a rank")
    orders = tuple(tuple(Operation(*pair) for pair in order) for order in ranks)
    wanted = Counter(Operation(kind, i) for kind in KINDS for i in range(m))
    for rank, order in enumerate(orders):
        differing = (wanted - Counter(order)) + (Counter(order) - wanted)
        if differing:
            first = min(differing)
            raise InputError(
                f"rank {rank} has {first} {order.count(first)} times: F, B and W of each of "
                f"{m} microbatches once"
            )
    schedule = Schedule("yours", m, 1, orders)
    try:
        _ = schedule.run_order
    except AssertionError as deadlock:
        raise InputError(str(deadlock)) from None
    most = max(peak_live(schedule))
    if most > case.live:
        raise InputError(f"{most} microbatches are alive at once, and {case.live} may be")
    return schedule


def clock_of(case: Pipeline, schedule: Schedule) -> Clocked:
    table = [dict(zip(KINDS, own)) for own in case.seconds]
    return clocked(schedule, lambda rank, operation: table[rank][operation.kind], case.send)


def ratio(case: Pipeline, ranks: list, bound: float) -> float:
    """The bound over the makespan, from 0 to 1."""
    return min(1.0, bound / clock_of(case, made(case, ranks)).makespan)
