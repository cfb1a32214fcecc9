"""The traffic of a rank: the bytes it sends, and how much of that overlaps with its own work.

Every operation of a `Group` leaves an `Op` in its rank's `Trace`: its kind, its bytes, when it was
issued, when the rank began to wait for it, when it continued. Communication is *exposed* while the
rank waits, *hidden* while the rank works and a message is in flight:

    communication   issued ─────────────────┬── done
    own work        ──────────────── waited ····        hidden to the left of waited, exposed after

Bytes on the wire, per rank, of a buffer of S bytes over N ranks (Patarasuk & Yuan 2009): all-reduce
2(N-1)/N·S; reduce-scatter and all-gather (N-1)/N·S, S being the full buffer; broadcast S, but 0 for
the last rank of the chain; all-to-all everything except the rank's own part.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from minitrain.errors import InputError, unknown_name

Interval = tuple[float, float]
Label = str | tuple  # of a mark: a name, or plain values such as a pipeline's operation


@dataclass(slots=True)
class Op:
    """One operation of one rank. Times are seconds on the group's clock; None: not yet."""

    kind: str  # send recv broadcast all_reduce reduce_scatter all_gather all_to_all barrier
    payload_bytes: int  # the full buffer: all_gather's output, reduce_scatter's input
    sent_bytes: int  # bytes this rank sends
    ranks: int  # size of the group
    peer: int | None = None  # the other rank of a send or recv, within the group
    issued: float = 0.0
    waited: float | None = None  # when the caller began to wait
    finished: float | None = None  # when the communication itself ended, if known
    done: float | None = None  # when the caller could continue
    members: tuple[int, ...] = ()  # the group's ranks, by their numbers in the launch

    @property
    def end(self) -> float:
        """The time at which the communication ended: `finished` if known, else `done`."""
        known = [t for t in (self.finished, self.done) if t is not None]
        return min(known, default=self.issued)


class Clock(Protocol):
    """A rank's clock, which stamps its operations. A `Work` calls, for its operation, in order:

    `issue(op, process_group)`  when the caller has called, before torch's operation starts
    `wait(op)`                  when the caller begins to wait
    `done(op)`                  when the data has arrived
    `resume()`                  when the rank's own code continues, after `issue` and after `done`

    An emulated clock may send messages of its own over `process_group` in `issue` and read them in
    `done`; every rank of that group calls in the same order. The group uses tag 0: use another.
    """

    emulated: bool

    def now(self) -> float: ...
    def issue(self, op: Op, process_group: Any) -> None: ...
    def wait(self, op: Op) -> None: ...
    def done(self, op: Op) -> None: ...
    def resume(self) -> None: ...


class WallClock:
    """Real seconds since the rank began."""

    emulated = False

    def __init__(self) -> None:
        self.start = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self.start

    def issue(self, op: Op, process_group: Any) -> None:
        op.issued = self.now()

    def wait(self, op: Op) -> None:
        op.waited = self.now()

    def done(self, op: Op) -> None:
        op.done = self.now()

    def resume(self) -> None:
        pass


@dataclass
class Trace:
    """All operations of one rank, in order of issue."""

    rank: int = 0
    emulated: bool = False
    ops: list[Op] = field(default_factory=list)
    marks: list[tuple[Label, float]] = field(default_factory=list)
    clock: Clock | None = field(default=None, repr=False, compare=False)

    def mark(self, label: Label) -> None:
        """Records a labelled time for the timeline: `group.trace.mark("backward")`."""
        assert self.clock is not None, "a trace that came back from a rank has no clock to mark by"
        self.marks.append((label, self.clock.now()))

    def bytes_sent(self, kind: str | None = None) -> int:
        return sum(op.sent_bytes for op in self.select(kind))

    def count(self, kind: str | None = None) -> int:
        return len(self.select(kind))

    def select(self, kind: str | None = None) -> list[Op]:
        return [op for op in self.ops if kind is None or op.kind == kind]

    def exposed_seconds(self) -> float:
        """Seconds in which the rank only waited for communication."""
        return length(union(self._waits()))

    def hidden_seconds(self) -> float:
        """Seconds in which a message was in flight while the rank did its own work."""
        waits = union(self._waits())
        under_way = union((op.issued, op.end) for op in self.ops)
        return length(under_way) - length(intersection(under_way, waits))

    def as_dict(self) -> dict[str, Any]:
        """The trace as plain values, for JSON."""
        ops = [{name: getattr(op, name) for name in Op.__slots__} for op in self.ops]
        marks = [(name if isinstance(name, str) else list(name), at) for name, at in self.marks]
        return {"rank": self.rank, "emulated": self.emulated, "ops": ops, "marks": marks}

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> Trace:
        ops = [Op(**{**op, "members": tuple(op["members"])}) for op in plain["ops"]]
        marks = [
            (name if isinstance(name, str) else tuple(name), float(at))
            for name, at in plain["marks"]
        ]
        return cls(plain["rank"], plain["emulated"], ops, marks)

    def check_waited(self) -> None:
        """Raises InputError if an operation was started but never waited for: no known end."""
        for op in self.ops:
            if op.waited is None or op.done is None:
                what = f"rank {self.rank}, {op.kind} of {op.payload_bytes} bytes"
                raise InputError(f"a work was never waited for ({what}): call `work.wait()`")

    def _waits(self) -> list[Interval]:
        self.check_waited()
        return [(op.waited, op.done) for op in self.ops]


def ring_bytes(kind: str, payload_bytes: int, ranks: int) -> int:
    """Bytes one rank sends when `kind` runs as a ring over `payload_bytes` (see the module)."""
    share = payload_bytes * (ranks - 1)
    if kind == "all_reduce":
        return 2 * share // ranks
    if kind in ("reduce_scatter", "all_gather"):
        return share // ranks
    if kind == "broadcast":
        return payload_bytes if ranks > 1 else 0
    known = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
    raise unknown_name("collective over a ring", kind, known)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times as `intervals`, as disjoint intervals in order."""
    merged: list[Interval] = []
    for start, end in sorted(i for i in intervals if i[1] > i[0]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def intersection(a: list[Interval], b: list[Interval]) -> list[Interval]:
    """The times in both; `a` and `b` are disjoint and in order, as from `union`."""
    common, i, j = [], 0, 0
    while i < len(a) and j < len(b):
        start, end = max(a[i][0], b[j][0]), min(a[i][1], b[j][1])
        if start < end:
            common.append((start, end))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return common


def length(intervals: list[Interval]) -> float:
    return sum(end - start for start, end in intervals)
