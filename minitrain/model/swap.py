"""Swaps the linear layers of a model for others: in few bits, or emulated ones."""

from __future__ import annotations

from collections.abc import Callable, Collection

from torch import nn


def swap_linears(
    model: nn.Module, make: Callable[[nn.Linear], nn.Module], keep: Collection[str] = ()
) -> int:
    """In place, but for those whose path has a name in `keep`; says how many."""
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not set(name.split(".")) & set(keep)
    ]
    for name, linear in found:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, make(linear))
    return len(found)
