"""One row, two rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def plural(count: float, noun: str) -> str:
    """1 -> "1 row", 2 -> "2 rows", 1.5 -> "1.5 rows"."""
    number = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{number} {noun}{'' if count == 1 else 's'}"


def bytes_text(value: float) -> str:
    """12000000 -> '12.0 MB' (decimal units)."""
    return _scaled(value, 1000, ["B", "kB", "MB", "GB", "TB", "PB"], " ")


def count_text(value: float) -> str:
    """1200000 -> '1.20M'."""
    return _scaled(value, 1000, ["", "k", "M", "B", "T"], "")


def seconds_text(value: float) -> str:
    """0.0031 -> '3.10 ms'."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def number_text(value: Any) -> str:
    """Any value, short: integers in full, floats to four digits, None as a dash."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):,}"
    return f"{value:.4g}"


def points_text(value: float) -> str:
    """2.0 -> '2', 1.5 -> '1.5'."""
    return f"{value:g}"


def score_text(got: float, most: float) -> str:
    """(2, 6) -> '2 of 6 points', (1, 1) -> '1 of 1 point'."""
    return f"{points_text(got)} of {plural(most, 'point')}"


def _scaled(value: float, step: int, units: Sequence[str], space: str) -> str:
    place, size = 0, float(value)
    while abs(size) >= step and place < len(units) - 1:
        place, size = place + 1, size / step
    exact = place == 0 and size == int(size)
    return (f"{int(size)}" if exact else f"{size:.3g}") + space + units[place]
