"""One row, two rows."""

from __future__ import annotations


def plural(count: float, noun: str) -> str:
    """1 -> "1 row", 2 -> "2 rows", 1.5 -> "1.5 rows"."""
    number = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{number} {noun}{'' if count == 1 else 's'}"
