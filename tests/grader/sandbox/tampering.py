"""Detects a submission that replaced its meters, or the code that sends its results.

Before the submission is loaded a snapshot is taken of every function that a probe relies on: the
object of its name, and its code. After the probe both are compared. Anything replaced
(`torch.allclose`, `Group.send`, a counter) is named in the verdict. Values are judged outside
anyway; but a manipulated meter must not earn points.
"""

from __future__ import annotations

import importlib
import json
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.lab.sandbox import audit_hook, plain_data, request, wire
from minitrain.measure import traffic
from minitrain.network import logical_clock
from minitrain.ranks import flight_recorder, group, work
from minitrain.ranks.group import Group

Snapshot = dict[str, tuple[Any, Any]]


def _unless_hidden(*names: str) -> Iterator[Any]:
    """These modules, except hidden ones: no probe measures with its own exercise's reference."""
    for name in names:
        with suppress(ImportError):
            yield importlib.import_module(name)


# Modules covered entirely, with every function, class and method: new ones are included.
OURS = (audit_hook, plain_data, request, wire)
OURS += (traffic, logical_clock, flight_recorder, group, work)
OURS += tuple(_unless_hidden("minitrain.measure.memory", "minitrain.measure.flops"))
# Modules covered in part: functions that probes compare with, or that write the reply.
LIBRARIES = {
    torch: (
        *("allclose", "equal", "isclose", "all", "eq", "sum", "frombuffer", "randn"),
        *("is_grad_enabled", "get_rng_state", "manual_seed"),
    ),
    torch.testing: ("assert_close",),
    TorchDispatchMode: ("__enter__", "__exit__"),
    saved_tensors_hooks: ("__enter__", "__exit__"),
    F: ("cross_entropy", "linear", "softmax"),
    json: ("dumps",),
    struct: ("pack",),
    os: ("write", "close", "_exit"),
}
# Classes covered entirely: a tensor's attributes, from `nbytes` to `grad_fn`.
WHOLE = (dist.ProcessGroup, torch.Tensor, torch.UntypedStorage)


def snapshot() -> Snapshot:
    """Every name's current object, and its code."""
    return {name: (value, _code(value)) for name, value in _meters()}


def changed(before: Snapshot) -> list[str]:
    """The names whose object or code differs from `before`."""
    now = snapshot()
    return sorted(name for name in before.keys() | now.keys() if not _same(before, now, name))


def _meters() -> Iterator[tuple[str, Any]]:
    """(name, object) of everything that must not change."""
    for owner, names in LIBRARIES.items():
        path = f"{owner.__module__}." if isinstance(owner, type) else ""
        yield from ((f"{path}{owner.__name__}.{name}", getattr(owner, name)) for name in names)
    for module in OURS:
        for name, value in vars(module).items():
            if getattr(value, "__module__", None) == module.__name__:
                yield f"{module.__name__}.{name}", value
                yield from _methods(value)
    for owner in WHOLE:
        yield from ((f"torch.{name}", method) for name, method in _methods(owner))
    for kind in ("function", "dispatch"):  # a mode still entered would answer in torch's place
        depth = getattr(torch._C, f"_len_torch_{kind}_stack")()
        yield f"torch's {kind} modes (one was entered and not left)", depth


def _methods(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, type):
        for name, method in vars(value).items():
            if name != "__slotnames__":  # set on a class by the first copy of an object
                yield f"{value.__name__}.{name}", method


def _same(before: Snapshot, now: Snapshot, name: str) -> bool:
    if name not in before or name not in now:
        return False
    return before[name][0] is now[name][0] and before[name][1] == now[name][1]


def _code(value: Any) -> Any:
    """The code of a function, also inside a property, classmethod or staticmethod."""
    function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
    if isinstance(function, FunctionType):
        return (function.__code__, function.__defaults__)
    return None


class GroupSnapshot:
    """A snapshot of a rank's group; its messages are noted by the relay (relay.py)."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.parts = {n: v for n, v in vars(group).items() if not isinstance(v, (int, float))}
        self.trace, self.records = group.trace, dict(vars(group.trace))

    def changed(self) -> list[str]:
        """Shadowed methods on the instance, and replaced parts and records."""
        now = vars(self.group)
        found = {name for name in now if hasattr(type(self.group), name)}
        found |= {name for name, part in self.parts.items() if now.get(name) is not part}
        records = vars(self.trace)
        found |= {f"trace.{name}" for name, v in self.records.items() if records.get(name) is not v}
        return sorted(f"group.{name}" for name in found)
