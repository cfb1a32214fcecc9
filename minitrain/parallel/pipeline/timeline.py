"""A schedule on a clock, without a model: its timeline, bubble, and live activations.

The clock is event-driven: an operation starts once its rank is free and its inputs are there; a
message between ranks occupies the sender's communication stream and arrives `send` seconds later.

    bubble = makespan - busy      of each rank; relative to m·v·(F+B) it is (p-1)/(m v) for 1F1B
    live   = forwards done whose backward (its last part) is not: activations held, per rank
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from minitrain.measure.traffic import Label, Trace
from minitrain.parallel.pipeline.operations import Operation, Schedule

UNIT = {"F": 1.0, "B": 2.0}
UNIT_SPLIT = {"F": 1.0, "B": 1.0, "W": 1.0}  # a backward is two forwards, half of it the weights'


class Event(NamedTuple):
    """An operation on the clock, in seconds."""

    operation: Operation
    start: float
    end: float


@dataclass(frozen=True)
class Clocked:
    """`ranks[r]`: the events of rank r in order."""

    ranks: tuple[tuple[Event, ...], ...]

    @property
    def makespan(self) -> float:
        return max(events[-1].end for events in self.ranks)

    def busy(self, rank: int) -> float:
        return sum(event.end - event.start for event in self.ranks[rank])

    def bubble(self, rank: int) -> float:
        """Seconds this rank waits between the first operation of all ranks and the last."""
        return self.makespan - self.busy(rank)


def clocked(
    schedule: Schedule,
    seconds: Callable[[int, Operation], float] | None = None,
    send: float = 0.0,
) -> Clocked:
    """Runs the schedule on a clock; on a deadlock an AssertionError names what each rank waits for.

    `seconds(rank, operation)`: 1 for a forward and 2 for a backward, unless given.
    """
    if seconds is None:
        unit = UNIT_SPLIT if schedule.splits_backward else UNIT
        seconds = lambda rank, operation: unit[operation.kind]  # noqa: E731
    p = len(schedule.ranks)
    events: list[list[Event]] = [[] for _ in range(p)]
    end, stream = [0.0] * p, [0.0] * p  # when the rank, and its communication stream, is free
    arrival: list[float] = []  # when others may use it
    for rank, operation, need in schedule.run_order:
        start = end[rank] if need is None else max(end[rank], arrival[need])
        end[rank] = start + seconds(rank, operation)
        events[rank].append(Event(operation, start, end[rank]))
        if operation.kind != "W":
            stream[rank] = max(stream[rank], end[rank]) + send
        arrival.append(stream[rank] if p > 1 else end[rank])
    return Clocked(tuple(map(tuple, events)))


def executed(traces: Sequence[Trace]) -> Clocked:
    """The timeline as executed, from the marks of the last `Pipeline.run` in each rank's trace.

    Seconds since the rank began its step; a barrier before it makes all ranks begin together.
    """
    return Clocked(tuple(tuple(_marked(trace.marks)) for trace in traces))


def _marked(marks: Sequence[tuple[Label, float]]) -> Iterator[Event]:
    """Pairs the marks at an operation's begin and end."""
    steps = [i for i, (label, _) in enumerate(marks) if label == "pipeline"]
    assert steps, "no pipeline has run on this rank"
    zero, begun = marks[steps[-1]][1], {}
    for label, seconds in marks[steps[-1] + 1 :]:
        if label in begun:
            yield Event(Operation(*label), begun.pop(label), seconds - zero)
        elif not isinstance(label, str):
            begun[label] = seconds - zero
    assert not begun, f"{Operation(*next(iter(begun)))} has begun and never ended"


def bubble_fraction(schedule: Schedule) -> float:
    """Idle time of a rank over its work, with unit times: (p-1)/m for GPipe and 1F1B."""
    clock = clocked(schedule)
    return max(clock.bubble(r) / clock.busy(r) for r in range(len(schedule.ranks)))


def peak_live(schedule: Schedule) -> list[int]:
    """For each rank, the most activations, one per chunk and microbatch, held at once."""
    return [peak_of(order) for order in schedule.ranks]


def peak_of(order: Sequence[Operation]) -> int:
    """Counts an activation as held until the operation that frees it has ended."""
    release = "W" if any(operation.kind == "W" for operation in order) else "B"
    steps = [(operation.kind == "F") - (operation.kind == release) for operation in order]
    return max(accumulate(steps), default=0)
