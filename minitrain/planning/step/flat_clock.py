"""The clock of a pipeline as one loop over numbers, for those who time many runs.

`parallel.schedule_check.clocked` walks named operations, and proves that they never halt. Which
operation needs which depends on (schedule, p, m, v) alone, so here that is found once; then each
run costs one pass over three arrays, p·m·v·2 steps, and gives the same bits.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from minitrain.parallel.pipeline.operations import Operation
from minitrain.parallel.pipeline.schedules import make_schedule
from minitrain.parallel.pipeline.timeline import clocked

KINDS = "FBW"
NOTHING = -1


@dataclass(frozen=True)
class FlatSchedule:
    """All operations in an order in which each comes after what it needs."""

    rank: array  # whose operation it is
    slot: array  # which of the seconds it takes: see `slot_of`
    need: array  # the other rank's operation that it waits for, or NOTHING
    sends: array  # 1 where its result goes to a neighbour: all but weight gradients


def slot_of(rank: int, chunk: int, kind: str, chunks: int) -> int:
    """Where an operation's seconds stand in the flat list."""
    return (rank * chunks + chunk) * len(KINDS) + KINDS.index(kind)


@lru_cache(maxsize=1024)
def flattened(name: str, p: int, m: int, v: int) -> FlatSchedule:
    """With unit times an operation starts after what it needs: sorted by start, all is in order."""
    schedule = make_schedule(name, p, m, v)
    events = [(e.start, r, e.operation) for r, es in enumerate(clocked(schedule).ranks) for e in es]
    events.sort(key=lambda event: event[0])
    place = {(r, operation): i for i, (_, r, operation) in enumerate(events)}

    def needed(r: int, operation: Operation) -> int:
        others = [place[need] for need in schedule.needs(r, operation) if need[0] != r]
        return others[0] if others else NOTHING

    return FlatSchedule(
        rank=array("i", [r for _, r, _ in events]),
        slot=array("i", [slot_of(r, o.chunk, o.kind, v) for _, r, o in events]),
        need=array("i", [needed(r, operation) for _, r, operation in events]),
        sends=array("b", [operation.kind != "W" for _, _, operation in events]),
    )


def finish(flat: FlatSchedule, seconds: Sequence[float], send: float, p: int) -> list[float]:
    """When each rank has done its last operation; `seconds[slot]`, and `send` of a message."""
    end = [0.0] * p
    stream = [0.0] * p  # when the rank's communication stream is free
    arrival: list[float] = []
    for rank, slot, need, sends in zip(flat.rank, flat.slot, flat.need, flat.sends):
        start = end[rank]
        if need >= 0 and arrival[need] > start:
            start = arrival[need]
        done = end[rank] = start + seconds[slot]
        free = stream[rank]
        if sends:
            free = stream[rank] = (free if free > done else done) + send
        arrival.append(free)
    return end
