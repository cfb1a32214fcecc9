"""Human-readable numbers: counts, bytes, seconds, points, with their units.

    plural(2, "row")     '2 rows'      bytes_text(12e6)       '12 MB'
    count_text(1.2e6)    '1.2M'        memory_text(1536)      '1.5 KiB'
    number_text(None)    '–'           seconds_text(3.1e-3)   '3.1 ms'
    points_text(1.5)     '1.5'         score_text(2, 6)       '2 of 6 points'
    printable(text)      untrusted text without control characters

Three significant digits, four for memory and plain numbers, without trailing zeros.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any


def plural(count: float, noun: str) -> str:
    """1 -> "1 row", 2 -> "2 rows", 1.5 -> "1.5 rows"."""
    number = f"{count:g}" if isinstance(count, float) else str(count)
    return f"{number} {noun}{'' if count == 1 else 's'}"


def bytes_text(value: float) -> str:
    """Decimal units, as for networks and disks: 12_000_000 -> '12 MB'."""
    return _scaled(value, 1000, (" B", " kB", " MB", " GB", " TB", " PB"), digits=3)


def memory_text(value: float) -> str:
    """Binary units, as for memory: 1536 bytes -> '1.5 KiB'."""
    return _scaled(value, 1024, (" B", " KiB", " MiB", " GiB", " TiB"), digits=4)


def count_text(value: float) -> str:
    """1_200_000 -> '1.2M'."""
    return _scaled(value, 1000, ("", "k", "M", "B", "T"), digits=3)


def seconds_text(value: float) -> str:
    """0.0031 -> '3.1 ms'."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-9:.3g} ns" if value else "0 s"


def number_text(value: Any) -> str:
    """Any value, short: integers in full, floats to four digits (58123.7 -> '58,120'), None as a
    dash."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, int) or (abs(value) < 1e15 and value == int(value)):
        return f"{int(value):,}"
    short = f"{value:.4g}"
    return f"{float(short):,.0f}" if 1e3 <= abs(float(short)) < 1e15 else short


def points_text(value: float) -> str:
    """2.0 -> '2', 1.5 -> '1.5'."""
    return f"{value:g}"


def score_text(got: float, most: float) -> str:
    """(2, 6) -> '2 of 6 points', (1, 1) -> '1 of 1 point'."""
    return f"{points_text(got)} of {plural(most, 'point')}"


def printable(text: str, most: int = 2000) -> str:
    """Untrusted text made safe for a terminal, JSON, XML and CSV: no control characters, no
    surrogates, and beyond `most` characters only the two ends."""
    half = most // 2
    if len(text) > most:
        text = f"{text[:half]} … {text[-half:]}"
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def _scaled(value: float, step: int, units: Sequence[str], digits: int) -> str:
    """Uses the first unit in which the rounded value is below `step`."""
    for unit in units[:-1]:
        text = f"{value:.{digits}g}"
        if abs(float(text)) < step:
            return text + unit
        value /= step
    return f"{value:.{digits}g}{units[-1]}"


def signal_text(number: int) -> str:
    """The signal's name, such as SIGKILL; real-time signals have none."""
    names = {one.value: one.name for one in signal.Signals}
    return names.get(number, f"signal {number}")
