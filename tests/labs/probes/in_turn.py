"""Calls in a row, in one process: what each gave, and what became of its inputs and its result.

For every exercise whose text says that inputs stay as they are, or that is a function of its
arguments alone. The verdict is `expect.left_alone`, and `expect.equal` call by call.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor


def in_turn(f, calls):
    """f on each tuple of arguments: a dict a call.

    out: the result when it came; later: the same object after the last call; given: the arguments
    after their call; shares: whether memory of the result is also an argument's.
    """
    live = []  # all of it alive to the end: memory that is freed comes back for other tensors
    for call in calls:
        given = fresh(call)
        out = f(*given)
        live.append((given, fresh(given), out, fresh(out)))
    return [
        {
            "out": first,
            "later": out,
            "given": after,
            "shares": bool(storages(out) & storages(given)),
        }
        for given, after, out, first in live
    ]


def in_turn_on_ranks(group, f, calls):
    """calls[rank]: that rank's arguments, call by call; f is given the group before them."""
    return in_turn(partial(f, group), calls[group.rank])


def fresh(value):
    """The same, with tensors of its own."""
    if isinstance(value, Tensor):
        value = plain(value)
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(fresh(item) for item in value)
    if isinstance(value, dict):
        return {key: fresh(item) for key, item in value.items()}
    return value


def plain(tensor):
    """It as torch has it, whatever a subclass of the submission's says in its place."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return Tensor.as_subclass(tensor, Tensor)


def storages(value):
    """Where the memory of its tensors begins."""
    if isinstance(value, Tensor):
        return {plain(value).untyped_storage().data_ptr()} - {0}
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return set().union(*map(storages, value))
    return set()
