"""The cost of each operation of a function: calls, bytes allocated, FLOPs.

    rows = operations_of(lambda: block(x, turns, mask))
    rows[0]      {"operation": "mm", "calls": 7, "bytes": 1441792, "FLOPs": 113246208}

Operations are those that PyTorch dispatches, below autograd. Views allocate nothing and are left
out; an operation with several results counts by the first. Lab: e05.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from minitrain.measure.flops import counted_flops


def operations_of(function: Callable[[], Any]) -> list[dict[str, Any]]:
    """A row for each kind of operation that `function` runs, most FLOPs per byte first."""
    with _Operations() as seen:
        function()
    return sorted(seen.rows.values(), key=lambda row: -row["FLOPs"] / max(row["bytes"], 1))


class _Operations(TorchDispatchMode):
    """Runs every operation, and adds it to the row of its kind."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: dict[Any, dict[str, Any]] = {}

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        results: list[Any] = []
        flops = counted_flops(lambda: results.append(op(*arguments, **(options or {}))))
        first = results[0][0] if isinstance(results[0], (tuple, list)) else results[0]
        if isinstance(first, Tensor) and not (op.is_view or "view" in str(op)):
            name = op.overloadpacket.__name__
            row = {"operation": name, "calls": 0, "bytes": 0, "FLOPs": 0}
            row = self.rows.setdefault(op, row)
            row["calls"] += 1
            row["bytes"] += first.nbytes
            row["FLOPs"] += flops
        return results[0]
