"""Memory of a step: activations recomputed or offloaded; optimizer state on CPU or disk.

from minitrain.memory import Offload, checkpoint
y = checkpoint(block, x)

recompute   a function's activations, dropped and recomputed    selective   all but its matmuls
segments    the same for a Transformer's blocks                 placement   which blocks
activation_offload   tensors saved for backward, in CPU memory
optimizer_offload    optimizer state, in `stores`: CPU memory or files
paged_optimizer      unified memory, simulated page by page
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "checkpoint": "recompute",
    "optimal_plan": "placement",
    "Offload": "activation_offload",
    "paged": "paged_optimizer",
}
__all__ = [*_HOMES]


def __getattr__(name: str) -> Any:
    """Imports a name from its module on first use, so that importing one file loads no other."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
