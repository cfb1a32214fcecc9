"""The clock of an emulated rank: time as it would pass on the fabric, while the run is real.

Two streams a rank, as on a GPU: compute, which advances by the CPU time of the rank's own thread,
and communication. A collective starts when its last rank has issued it and the one before it in the
same group is done; its duration comes from the fabric's links. A message leaves when the sender's
outgoing link is free, takes S·β on it, arrives α later, and takes S·β on the receiver's incoming
link (LogGP, Alexandrov et al. 1995). `wait()` advances compute to the end of the operation.

To learn when the others issued it, each operation carries one extra number: the time of issue,
8 bytes on the same process group, which no trace counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from minitrain.measure.traffic import Op
from minitrain.network.fabric import Fabric

STAMP_TAG = 1  # the rank's own messages have tag 0


@dataclass(eq=False)
class Pending:
    """An operation in flight: its stamp (a time, 8 bytes), and the participating ranks."""

    op: Op
    stamp: torch.Tensor  # (1,) float64
    work: Any
    members: Sequence[int]  # global ranks
    stream: Stream | None = None  # a collective's

    def stamped(self) -> float:
        """Waits for the stamp and returns it; may be called repeatedly."""
        if self.work is not None:
            self.work.wait()
            self.work = None
        return self.stamp.item()


@dataclass
class Stream:
    """The collectives of one process group, one after another."""

    free_at: float = 0.0
    queue: deque[Pending] = field(default_factory=deque)


class LogicalClock:
    """A `Clock` for `Group`, in seconds of the emulated fabric: `group.use(LogicalClock(…))`."""

    emulated = True

    def __init__(self, fabric: Fabric, rank: int) -> None:
        assert fabric.compute_scale is not None, "resolve the fabric before the ranks start"
        self.fabric = fabric
        self.rank = rank  # in the whole launch
        self.seconds = 0.0
        self.sent_until = 0.0  # when this rank's outgoing link is free
        self.received_until = 0.0  # when its incoming link is free
        self.streams: dict[Any, Stream] = {}
        self.pending: dict[int, Pending] = {}  # by id(op)
        self.computing = True
        self.cpu_seconds = time.thread_time()

    def now(self) -> float:
        """Compute and waiting so far, without the CPU time of communication itself."""
        cpu = time.thread_time()
        if self.computing:
            self.seconds += (cpu - self.cpu_seconds) * self.fabric.compute_scale
        self.cpu_seconds = cpu
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Adds compute of known duration, which need not be measured: `seconds` of the fabric."""
        self.seconds = self.now() + seconds

    def first_byte(self, op: Op) -> float:
        """The time at which a message for this rank begins to arrive, before or after now.

        Known once the message was really sent; until then this rank's own time stands still.
        """
        self.now()
        self.computing = False
        seconds = self.pending[id(op)].stamped()
        self.resume()
        return seconds

    @contextmanager
    def beside(self) -> Iterator[None]:
        """Makes waits inside the block free: for a thread beside the rank's own that waits."""
        here = self.now()
        yield
        self.now()
        self.seconds = here

    def issue(self, op: Op, process_group: Any) -> None:
        op.issued = self.now()
        self.computing = False
        members = op.members
        if op.kind == "send":
            entry = self._send(op, process_group, members)
        elif op.kind == "recv":
            stamp = torch.zeros(1, dtype=torch.float64)
            work = process_group.recv([stamp], op.peer, STAMP_TAG)
            entry = Pending(op, stamp, work, members)
        else:
            entry = self._collective(op, process_group, members)
        self.pending[id(op)] = entry

    def wait(self, op: Op) -> None:
        op.waited = self.now()
        self.computing = False

    def done(self, op: Op) -> None:
        """Joins the streams: compute resumes when the operation ends, at once if it has ended."""
        entry = self.pending.pop(id(op))
        if op.kind == "recv":
            self._receive(entry)
        elif op.kind == "send":
            entry.stamped()  # it is in flight; its end was known at once
        else:
            self._finish_up_to(entry)
        op.done = self.seconds = max(self.seconds, op.finished)

    def resume(self) -> None:
        self.now()
        self.computing = True

    def _send(self, op: Op, process_group: Any, members: Sequence[int]) -> Pending:
        latency, on_the_wire = self._message_seconds(op, members)
        started = max(op.issued, self.sent_until)
        op.finished = self.sent_until = started + on_the_wire
        stamp = torch.tensor([started + latency], dtype=torch.float64)
        work = process_group.send([stamp], op.peer, STAMP_TAG)
        return Pending(op, stamp, work, members)

    def _receive(self, entry: Pending) -> None:
        """The first byte arrives at the stamp, the last once the incoming link has carried it."""
        stamp = entry.stamped()
        _, on_the_wire = self._message_seconds(entry.op, entry.members)
        started = max(stamp, self.received_until)
        entry.op.finished = self.received_until = started + on_the_wire

    def _message_seconds(self, op: Op, members: Sequence[int]) -> tuple[float, float]:
        """α and S·β between this rank and the operation's peer."""
        pair = (self.rank, members[op.peer])
        latency = self.fabric.seconds("send", 0, pair)
        return latency, self.fabric.seconds("send", op.payload_bytes, pair) - latency

    def _collective(self, op: Op, process_group: Any, members: Sequence[int]) -> Pending:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MAX
        stamp = torch.tensor([op.issued], dtype=torch.float64)
        work = process_group.allreduce([stamp], options)
        stream = self.streams.setdefault(process_group, Stream())
        entry = Pending(op, stamp, work, members, stream=stream)
        stream.queue.append(entry)
        return entry

    def _finish_up_to(self, last: Pending) -> None:
        """Ends the collectives of the group in order of issue."""
        stream = last.stream
        while last.op.finished is None:
            entry = stream.queue.popleft()
            started = max(entry.stamped(), stream.free_at)
            seconds = self.fabric.seconds(entry.op.kind, entry.op.payload_bytes, entry.members)
            entry.op.finished = stream.free_at = started + seconds
