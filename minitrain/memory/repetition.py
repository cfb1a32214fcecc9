"""Whether this forward is a repetition: recomputation runs a module twice for one step.

What a module only *computes* may happen twice; what it *counts* (tokens an expert received, calls,
running means) must not, and what it *frees* (a gathered shard) is still needed right after:

    if not recomputing():
        self.tokens_per_expert += counts
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_REPEATING: ContextVar[bool] = ContextVar("repeating", default=False)


def recomputing() -> bool:
    """True while a checkpointed function runs again, in backward; also within what it calls."""
    return _REPEATING.get()


@contextmanager
def repetition() -> Iterator[None]:
    """Marks the block as a repetition, in this thread: `memory.recompute` puts it around one."""
    token = _REPEATING.set(True)
    try:
        yield
    finally:
        _REPEATING.reset(token)
