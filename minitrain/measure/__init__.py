"""Measurements: bytes held, seconds, FLOPs, bytes sent.

from minitrain.measure import MemoryLedger, compare, counted_flops, memory_budget
"""

from minitrain.doors import doors

__getattr__ = doors(
    __name__,
    {
        "MemoryLedger": "memory",
        "compare": "clock",
        "counted_flops": "flops",
        "memory_budget": "budget",
    },
)
