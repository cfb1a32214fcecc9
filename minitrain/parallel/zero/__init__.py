"""ZeRO: optimizer state, gradients and parameters sharded over ranks; as in lab e03, and in full.

from minitrain.parallel.zero import Zero, Zero3, ZeroOptimizer, full_state_dict
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Zero": "sharded",
    "Zero3": "stage_3",
    "ZeroOptimizer": "optimizer",
    "full_state_dict": "state",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
