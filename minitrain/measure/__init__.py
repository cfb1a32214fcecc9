"""Measurements: bytes held, seconds, FLOPs, bytes sent.

from minitrain.measure import MemoryLedger, compare, counted_flops, memory_budget
"""

_DOOR = {
    "MemoryLedger": "memory",
    "compare": "clock",
    "counted_flops": "flops",
    "memory_budget": "budget",
}


def __getattr__(name: str) -> object:
    """Imports a public name on first use: `--help` and the sandbox start without torch."""
    if name not in _DOOR:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_DOOR[name]}"), name)
