"""Notices when a submission has changed what measures it.

Before the submission is loaded every function that a probe relies on is remembered: which object
its name stands for, and which code it runs. After the probe the same is looked up again. What a
submission has replaced (`torch.allclose`, `Group.send`, a counter) is named in the verdict. Values
would be judged right without this, elsewhere; but a meter that was bent must not earn points.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from minitrain.lab.sandbox import plain_data
from minitrain.measure import traffic
from minitrain.measure.traffic import Op, Trace
from minitrain.ranks.flight_recorder import FlightRecorder
from minitrain.ranks.group import Group
from minitrain.ranks.work import GroupCall, Work

State = dict[str, tuple[Any, Any]]

FUNCTIONS = {
    "torch": (torch, ("allclose", "equal", "isclose", "all", "eq", "sum", "frombuffer", "randn")),
    "torch.testing": (torch.testing, ("assert_close",)),
    "torch.Tensor": (torch.Tensor, ("__eq__", "equal", "allclose", "numpy", "detach", "view")),
    "torch.nn.functional": (F, ("cross_entropy", "linear", "softmax")),
    "wire": (plain_data, ("pack", "_encode", "_encode_tensor", "_encode_rare")),
    "json": (json, ("dumps",)),
    "struct": (struct, ("pack",)),
    "os": (os, ("write", "close", "_exit")),
}
CLASSES = (
    *(Group, GroupCall, Work, FlightRecorder, dist.ProcessGroup),
    *(traffic.Trace, traffic.Op, traffic.WallClock),
)


def snapshot() -> State:
    """What every sealed name stands for now, and its code."""
    names = {f"{o}.{a}": getattr(owner, a) for o, (owner, some) in FUNCTIONS.items() for a in some}
    for cls in CLASSES:
        names.update(
            {f"{cls.__name__}.{attribute}": value for attribute, value in vars(cls).items()}
        )
    return {name: (value, _code(value)) for name, value in names.items()}


def broken(before: State) -> list[str]:
    """The names that no longer stand for what they stood for at `before`."""
    now = snapshot()
    return sorted(name for name in before.keys() | now.keys() if not _same(before, now, name))


def _same(before: State, now: State, name: str) -> bool:
    if name not in before or name not in now:
        return False
    return before[name][0] is now[name][0] and before[name][1] == now[name][1]


def _code(value: Any) -> Any:
    """The code of a function, also inside a property, classmethod or staticmethod."""
    function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    if isinstance(function, FunctionType):
        return (function.__code__, function.__defaults__)
    return None


class GroupSeal:
    """A rank's group as it was; a witness (tampering.py) keeps a second record of what it does."""

    def __init__(self, group: Group) -> None:
        self.group, self.trace, self.witness = group, group.trace, Witness(group.trace)
        group.use(self.witness)
        self.parts = {n: v for n, v in vars(group).items() if not isinstance(v, (int, float))}
        self.ops = group.trace.ops

    def broken(self) -> list[str]:
        """Methods shadowed on the instance, parts exchanged, records changed."""
        now = vars(self.group)
        found = {name for name in now if hasattr(type(self.group), name)}
        found |= {name for name, part in self.parts.items() if now.get(name) is not part}
        if self.trace.clock is not self.witness:
            found.add("trace.clock")
        if self.trace.ops is not self.ops or not self.witness.agrees(self.ops):
            found.add("trace.ops")
        return sorted(f"group.{name}" for name in found)


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
