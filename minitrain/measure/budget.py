"""A memory budget: exceeding it raises on any machine, with a table of what is held.

    with memory_budget("200 MB"):
        loss = model(tokens); loss.backward(); optimizer.step()      # OutOfMemory if it takes more

It is a `MemoryLedger` that detects parameters, gradients and optimizer state by itself, and raises
after the operation that passed the limit. It counts what the block makes or touches, on one device,
separately on each rank of a launch. Cost: the ledger's, 20 µs an operation.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from minitrain.errors import InputError
from minitrain.measure.memory import MemoryLedger
from minitrain.words import memory_text

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}

REMEDIES = {
    "parameters": "shard them (ZeRO-3), or store them in bfloat16",
    "buffers": "store fewer, or smaller ones",
    "gradients": "shard them (ZeRO-2)",
    "optimizer": "shard the state (ZeRO-1), offload it, or use an optimizer that keeps less",
    "activations": "recompute them, or use a smaller microbatch",
    "temporaries": "use a smaller microbatch, or look for the operation that makes them",
}


class OutOfMemory(MemoryError):
    """More bytes are held than the budget allows; the message has the ledger's table."""


@contextmanager
def memory_budget(limit: str | int, device: torch.device | str = "cpu") -> Iterator[MemoryLedger]:
    """Raises OutOfMemory when the bytes on `device` pass `limit`: "200 MB", "1.5 GiB", or bytes.

    Yields the ledger, to see how much of the budget was needed.
    """
    ledger = _BudgetLedger(parse_bytes(limit), device)
    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: ledger.optimizers.add(optimizer))
    try:
        with ledger:
            yield ledger
    finally:
        hook.remove()


def parse_bytes(size: str | int) -> int:
    """ "200 MB" -> 200000000, "1.5 GiB" -> 1610612736, 4096 -> 4096."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B)\s*", str(size), re.IGNORECASE)
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    if match is None or float(match[1]) * UNITS[match[2].upper()] < 1:
        raise InputError(
            f"{size!r} is not a size of memory: give a number and a unit of B, KB, MB, GB, TB "
            "(1000s) or KiB, MiB, GiB, TiB (1024s), as in '200 MB' or '1.5 GiB'"
        )
    return int(float(match[1]) * UNITS[match[2].upper()])


class _BudgetLedger(MemoryLedger):
    """A ledger that detects parameters when they are used, and optimizers when they step."""

    def __init__(self, limit: int, device: torch.device | str) -> None:
        self.limit = limit
        self.seen: weakref.WeakValueDictionary[int, nn.Parameter] = weakref.WeakValueDictionary()
        self.optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        super().__init__(nn.Module(), device=device)

    def __exit__(self, *exception: Any) -> None:
        limit, self.limit = self.limit, float("inf")  # no error while leaving the block
        super().__exit__(*exception)
        self.limit = limit

    def _holders(self) -> Iterator[tuple[str, Iterable[Tensor]]]:
        parameters = list(self.seen.values())
        yield "parameters", parameters
        with torch._C.DisableTorchFunctionSubclass():  # whatever a subclass overrides
            yield "gradients", [p.grad for p in parameters if p.grad is not None]
        states = [dict(state) for o in self.optimizers for state in o.state.values()]
        yield "optimizer", [leaf for leaf in tree_leaves(states) if isinstance(leaf, Tensor)]

    def _enter(self, tensor: Tensor, category: str) -> list:
        if isinstance(tensor, nn.Parameter):
            self.seen[id(tensor)] = tensor
            category = "parameters"
        return super()._enter(tensor, category)

    def _resize(self, entry: Any, size: int) -> None:
        grows = size > entry.size
        super()._resize(entry, size)
        if grows and sum(self._bytes.values()) > self.limit:
            self._see_shrunk()
            if sum(self._bytes.values()) > self.limit:
                raise self._exceeded()

    def _exceeded(self) -> OutOfMemory:
        limit, self.limit = self.limit, float("inf")  # while the table is made
        table, self.limit = repr(self), limit
        largest = max(self._bytes, key=self._bytes.__getitem__)
        return OutOfMemory(
            f"out of memory: {memory_text(sum(self._bytes.values()))} are held and the budget is "
            f"{memory_text(limit)}\n{table}\nmost are {largest}: {REMEDIES[largest]}"
        )
