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
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from minitrain.lab import wire
from minitrain.measure import traffic
from minitrain.parallel.board import Board
from minitrain.parallel.group import Group, Work

State = dict[str, tuple[Any, Any]]

FUNCTIONS = {
    "torch": (torch, ("allclose", "equal", "isclose", "all", "eq", "sum", "frombuffer", "randn")),
    "torch.testing": (torch.testing, ("assert_close",)),
    "torch.Tensor": (torch.Tensor, ("__eq__", "equal", "allclose", "numpy", "detach", "view")),
    "torch.nn.functional": (F, ("cross_entropy", "linear", "softmax")),
    "wire": (wire, ("pack", "_encode", "_encode_tensor", "_encode_rare")),
    "json": (json, ("dumps",)),
    "struct": (struct, ("pack",)),
    "os": (os, ("write", "close", "_exit")),
}
CLASSES = (Group, Work, Board, traffic.Trace, traffic.Op, traffic.WallClock, dist.ProcessGroup)


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


@dataclass(frozen=True)
class GroupSeal:
    """A rank's group as it was: its parts, and how many operations its record has and the board."""

    group: Group
    parts: dict[str, Any]
    ops: list[traffic.Op]

    @staticmethod
    def of(group: Group) -> GroupSeal:
        parts = {n: v for n, v in vars(group).items() if not isinstance(v, (int, float))}
        return GroupSeal(group, {**parts, "trace.clock": group.trace.clock}, group.trace.ops)

    def broken(self) -> list[str]:
        """Methods shadowed on the instance, parts exchanged, records added or taken away."""
        group, now = self.group, {**vars(self.group), "trace.clock": self.group.trace.clock}
        found = {name for name in vars(group) if hasattr(type(group), name)}
        found |= {name for name, part in self.parts.items() if now.get(name) is not part}
        if group.trace.ops is not self.ops or self._miscounted():
            found.add("trace.ops")
        return sorted(f"group.{name}" for name in found)

    def _miscounted(self) -> bool:
        """The board, which all ranks share, counts too; a subgroup posts on lines of its own."""
        posted = self.group.board.count() if isinstance(self.group.board, Board) else None
        if posted is None or self.group._children:
            return False
        return posted != len(self.ops)
