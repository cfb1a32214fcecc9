"""A second record of a rank's operations, kept where a submission has no reason to look.

It stands between the group and its clock, at the seam that `Group.use` has for an emulated one, and
notes each operation as it is issued. A trace that says something else afterwards was bent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minitrain.measure.traffic import Op, Trace

Note = tuple[Any, ...]


class Witness:
    """A `Clock` that passes every call on and remembers what was recorded."""

    def __init__(self, trace: Trace) -> None:
        assert trace.clock is not None, "a rank's own trace has a clock"
        self.clock, self.emulated, self.trace = trace.clock, trace.clock.emulated, trace
        self.notes: list[Note] = [_note(op) for op in trace.ops]

    def agrees(self, ops: Sequence[Op]) -> bool:
        """Whether these are the operations that were issued, in order and unchanged."""
        return [_note(op) for op in ops] == self.notes

    def now(self) -> float:
        return self.clock.now()

    def issue(self, op: Op, process_group: Any) -> None:
        if self.trace.ops and self.trace.ops[-1] is op:  # a group's own bookkeeping is not recorded
            self.notes.append(_note(op))
        self.clock.issue(op, process_group)

    def wait(self, op: Op) -> None:
        self.clock.wait(op)

    def done(self, op: Op) -> None:
        self.clock.done(op)

    def resume(self) -> None:
        self.clock.resume()


def _note(op: Op) -> Note:
    """What is settled when an operation is issued; its times come later."""
    return (op.kind, op.payload_bytes, op.sent_bytes, op.ranks, op.peer)
