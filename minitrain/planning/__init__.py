"""Memory, time, cost and scaling laws of a training run, estimated before it starts.

from minitrain.planning import estimate, run_from_row
estimate(run_from_row({"chip": "H100-SXM-80GB", "layers": "32", "hidden": "4096"})).mfu

run            model, chips and how the work is cut     hardware   what a chip can do
columns        runs from the rows of a CSV              search     the best cut
step           a step's seconds and bytes               closed_forms   the same on one page
validate       against every published run              finetuning_memory   LoRA, QLoRA
money, failures, scaling
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "make_run": "run",
    "run_from_row": "columns",
    "estimate": "step.step",
    "tuning_memory": "finetuning_memory",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Imports a name from its module on first use, so that importing one file loads no other."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
