"""Doubts for an instructor about a recorded table: whether its numbers are copied, and whether a
clock produced them.

    doubts_of(tables, "e00_…", solutions)    copied from the solutions, or not from a clock
    copies({"ada": prints, "bob": prints})   copied from each other
    is_copied(submission, exercises, solutions)         the executed solution, handed in

A doubt is a remark, not a verdict. Only clock readings are examined (`clocked.py`): two honest runs
never agree in all their digits, while their byte counts always do.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from minitrain.errors import InputError
from minitrain.lab.grading.clocked import CLOCKED
from minitrain.lab.grading.submission import Submission, read_submission

COPIED = "exercises"  # the doubt that withholds points without being asked to
FEWEST = 3  # exercises: two may coincide with the course's own
Table = Sequence[Mapping[str, Any]]
DIGITS = 6  # a clock gives more, so two runs differ
ROUND = 3  # too few for a measurement
ALIKE = 3  # equal numbers in two tables beyond coincidence; in smaller tables, all
KEPT = 8  # fingerprints per table, enough to detect a partial copy
MOST_ROWS, MOST_COLUMNS = 1000, 50  # since tables may be fabricated, of any size
EXACT = 1e-6  # relative; no clock reading is this close to a formula


def doubts_of(tables: Mapping[str, Table], lab: str, solutions: Path) -> dict[str, str]:
    """{experiment: doubt}, from the tables alone."""
    found = {}
    for name in clocked_tables(tables, lab):
        table, columns = tables[name], CLOCKED[lab][name]
        shared = readings(table, columns) & _solution(solutions / f"{lab}.ipynb", lab, name)
        words = [f"{len(shared)} of its measured numbers are those recorded in solutions/"]
        words = words if are_alike(len(shared), len(readings(table, columns))) else []
        words += impossible(table, columns)
        if words:
            found[name] = "; ".join(words)
    return found


def is_copied(submission: Submission, names: Sequence[str], solutions: Path) -> bool:
    """True if every exercise is the course's own solution but for comments and layout, in a file
    that is not in `solutions` itself."""
    own = solutions / f"{submission.lab}.ipynb"
    if len(names) < FEWEST or submission.path.resolve().parent == solutions or not own.is_file():
        return False
    ours = _solved(own)
    return all(submission.definition(name) == ours.definition(name) for name in names)


_solved = cache(read_submission)


def clocked_tables(tables: Mapping[str, Table], lab: str) -> list[str]:
    return [name for name in CLOCKED.get(lab, {}) if tables.get(name)]


def are_alike(shared: int, of: int) -> bool:
    return of > 0 and shared >= min(ALIKE, of)


def readings(table: Table, columns: Sequence[str]) -> set[str]:
    """The measured numbers, each with its column, with enough digits to identify a run."""
    return {
        f"{column}={number!r}"
        for column in columns
        for number in _numbers(table, column)
        if number and _digits(number) >= DIGITS
    }


def _solution(path: Path, lab: str, name: str) -> set[str]:
    return _recorded(path, lab).get(name, set())


@cache
def _recorded(path: Path, lab: str) -> dict[str, set[str]]:
    """The readings of a solution; none where an instructor has removed the solutions."""
    try:
        tables = _solved(path).recorded.get("experiment", {})
    except InputError:
        return {}
    return {n: readings(tables[n], CLOCKED[lab][n]) for n in clocked_tables(tables, lab)}


# --- numbers that no clock produces ---


def impossible(table: Table, columns: Sequence[str]) -> list[str]:
    """Describes the fault of each column: few digits, all equal, exact multiples of one number, or
    exactly on a line."""
    found: dict[str, list[str]] = defaultdict(list)
    for column in columns:
        words = _impossible(table[:MOST_ROWS], column)
        if words:
            found[words].append(column)
    return [f"{', '.join(names)}: {words}" for words, names in found.items()]


def _impossible(table: Table, column: str) -> str | None:
    numbers = _numbers(table, column)
    if not numbers or not any(numbers):
        return "there is nothing but zeros" if numbers else None
    numbers = [number for number in numbers if number]
    few = sum(_digits(number) <= ROUND for number in numbers)
    if few > len(numbers) / 2:
        return f"{few} of {len(numbers)} numbers have {ROUND} digits or fewer"
    if len(numbers) < 3:
        return None
    if len(set(numbers)) == 1:
        return f"all {len(numbers)} numbers are equal"
    if _are_multiples(numbers):
        return f"all {len(numbers)} numbers are exact multiples of one"
    others = [name for name in list(table[0])[:MOST_COLUMNS] if name != column]
    line = next((other for other in others if _on_a_line(table, other, column)), "")
    return f"all {len(numbers)} numbers lie exactly on a line over {line}" if line else None


def _are_multiples(numbers: Sequence[float]) -> bool:
    ratios = [number / min(numbers, key=abs) for number in numbers]
    return all(abs(ratio) < 1e5 and abs(ratio - round(ratio)) < EXACT for ratio in ratios)


def _on_a_line(table: Table, other: str, column: str) -> bool:
    """True for four or more points with the same slope between all neighbours."""
    rows = [row for row in table if _is_number(row.get(other)) and _is_number(row.get(column))]
    points = sorted({(float(row[other]), float(row[column])) for row in rows})
    if len({x for x, _ in points}) < max(4, len(points)):
        return False
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(points)]
    return max(slopes) - min(slopes) <= EXACT * max(map(abs, slopes))


def _numbers(table: Table, column: str) -> list[float]:
    return [float(row[column]) for row in table if _is_number(row.get(column))]


def _is_number(value: Any) -> bool:
    """Safe for untrusted values: an integer of a thousand digits does not count."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return abs(value) < 1e300 and math.isfinite(value)


def _digits(number: float) -> int:
    """Significant digits, as written: 0.00120 has two."""
    return len(repr(number).partition("e")[0].replace(".", "").lstrip("-0").rstrip("0"))


# --- of one class ---


def prints_of(tables: Mapping[str, Table], lab: str) -> dict[str, list[str]]:
    """{experiment: short hashes of some of its readings}, used to detect copies."""
    found = {}
    for name in clocked_tables(tables, lab):
        marks = map(_hash, readings(tables[name], CLOCKED[lab][name]))
        found[name] = sorted(marks)[:KEPT]  # the smallest, so that a copy has the same ones
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def copies(prints: Mapping[Any, Mapping[str, Iterable[str]]]) -> dict[Any, dict[str, list[Any]]]:
    """{owner: {experiment: the others whose table has the same numbers}} of one lab.

    Who measured is unknown, so both are named.
    """
    holders: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for owner, tables in prints.items():
        for name, marks in tables.items():
            for mark in marks:
                holders[name, mark].append(owner)
    return {owner: _sharing(owner, tables, holders) for owner, tables in prints.items()}


def _sharing(
    owner: Any, tables: Mapping[str, Iterable[str]], holders: Mapping[tuple[str, str], list[Any]]
) -> dict[str, list[Any]]:
    found = {}
    for name, marks in tables.items():
        marks = list(marks)
        shared = Counter(other for mark in marks for other in holders[name, mark])
        alike = [o for o, n in shared.items() if o != owner and are_alike(n, len(marks))]
        if alike:
            found[name] = alike
    return found
