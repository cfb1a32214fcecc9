"""Notices when a submission has changed what measures it.

Before the submission is loaded every function that a probe relies on is remembered: which object its
name stands for, and which code it runs. After the probe the same is looked up again. A submission
that replaces `torch.allclose`, `Group.send` or a counter is named in the verdict; its verdict would
be right without this (it is computed elsewhere), but a meter that was bent must not earn points.
"""

from __future__ import annotations

import json
import os
import struct
from types import FunctionType
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from minitrain.lab import wire
from minitrain.measure import traffic
from minitrain.parallel import group as groups

State = dict[str, tuple[Any, Any]]

TORCH = ["allclose", "equal", "isclose", "all", "eq", "ne", "sum", "is_tensor", "frombuffer"]
DIST = [
    "send",
    "recv",
    "isend",
    "irecv",
    "batch_isend_irecv",
    "all_reduce",
    "broadcast",
    "all_gather_into_tensor",
]
DIST += ["reduce_scatter_tensor", "all_to_all_single", "barrier", "new_group", "P2POp"]
TENSOR = [
    "__eq__",
    "__ne__",
    "equal",
    "allclose",
    "numpy",
    "detach",
    "cpu",
    "contiguous",
    "view",
    "reshape",
    "clone",
]


def snapshot() -> State:
    """What every sealed name stands for now."""
    state: State = {}
    for owner, name, attributes in _sealed():
        for attribute in attributes:
            value = getattr(owner, attribute, None)
            state[f"{name}.{attribute}"] = (value, _code(value))
    return state


def broken(before: State) -> list[str]:
    """The names that no longer stand for what they stood for at `before`."""
    now = snapshot()
    return sorted(
        name
        for name in before.keys() | now.keys()
        if name not in now or name not in before or not _same(before[name], now[name])
    )


def group_state(group: groups.Group) -> dict[str, Any]:
    """The parts of a rank's group that a submission has no business to exchange."""
    return {
        name: value for name, value in vars(group).items() if not isinstance(value, (int, float))
    }


def group_broken(group: groups.Group, before: dict[str, Any], ops: list[Any]) -> list[str]:
    """Methods that were shadowed on the instance, parts that were exchanged, records taken away."""
    shadowed = [name for name in vars(group) if callable(getattr(type(group), name, None))]
    exchanged = [name for name, value in before.items() if vars(group).get(name) is not value]
    names = {f"group.{name}" for name in [*shadowed, *exchanged]}
    if group.trace.ops is not ops:
        names.add("group.trace.ops")
    return sorted(names)


def _sealed() -> list[tuple[Any, str, list[str]]]:
    classes = [
        c for c in vars(groups).values() if isinstance(c, type) and c.__module__ == groups.__name__
    ]
    classes += [traffic.Trace, traffic.Op, traffic.WallClock]
    own = [(c, c.__name__, [n for n, v in vars(c).items() if callable(_plain(v))]) for c in classes]
    return [
        (torch, "torch", TORCH),
        (torch.testing, "torch.testing", ["assert_close"]),
        (torch.Tensor, "torch.Tensor", TENSOR),
        (dist, "torch.distributed", DIST),
        (F, "torch.nn.functional", ["cross_entropy", "linear"]),
        (wire, "wire", ["pack", "_encode", "_encode_tensor", "_encode_rare"]),
        (json, "json", ["dumps"]),
        (struct, "struct", ["pack"]),
        (os, "os", ["write", "_exit", "close"]),
        *own,
    ]


def _plain(value: Any) -> Any:
    """The function inside a staticmethod, classmethod or property."""
    return getattr(value, "__func__", None) or getattr(value, "fget", None) or value


def _code(value: Any) -> Any:
    function = _plain(value)
    if isinstance(function, FunctionType):
        return (function.__code__, function.__defaults__)
    return None


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    return _identity(one[0]) is _identity(other[0]) and one[1] == other[1]


def _identity(value: Any) -> Any:
    """Looking up a classmethod makes a new bound method each time: compare what is inside."""
    return getattr(value, "__func__", value)
