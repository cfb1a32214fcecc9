"""The CSV of a class: one row per student and lab, and remarks that compare rows.

A row is kept while its file and checks are unchanged (`graded_from`). Fields that depend on other
rows are recomputed each time from `details`: shared tables, and withheld points.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas

from minitrain.errors import InputError
from minitrain.lab.grading.collect import Entry
from minitrain.lab.grading.doubts import COPIED, copies
from minitrain.lab.grading.results import CheckResult, Report
from minitrain.words import plural, points_text, printable

PARTS = ("doubts", "sources", "prints")  # fields of a report
BOM = "\ufeff"  # lets Excel detect UTF-8
FORMULA = re.compile(r"(^|;)(?=[\s\"]*[=+\-@＝＋－＠])")  # the start of one, half- or full-width


@dataclass(frozen=True)
class Grade:
    """A line of the CSV; `error` says why there is no score, `remarks` lists failures, `doubts` the
    recorded tables to ask about."""

    student: str
    lab: str
    score: str
    max_score: str
    error: str
    remarks: str
    doubts: str
    file: str
    graded_from: str  # digest of file and checks: the row is kept while both are unchanged
    details: str = ""  # JSON, see `details_of`


COLUMNS = [field.name for field in fields(Grade)]


# --- one row, from a submission's outcome ---


def graded(entry: Entry, report: Report, mark: str) -> Grade:
    """The row of a submission that was graded; `finished` gives it its score and doubts."""
    text = one_line(" | ".join(_remarks(report)))
    most, details = points_text(report.max_score), details_of(report)
    file = one_line(str(entry.path))
    return Grade(one_line(entry.student), report.lab, "", most, "", text, "", file, mark, details)


def failed(entry: Entry, reason: str, mark: str) -> Grade:
    """The row of a submission that was not graded."""
    student, file = one_line(entry.student), one_line(str(entry.path))
    return Grade(student, entry.lab, "0", "", one_line(reason), "", "", file, mark)


def one_line(text: str) -> str:
    """Makes untrusted text safe for one cell of a table.

    Text that a spreadsheet would run as a formula is prefixed with an apostrophe, also after a
    semicolon, which separates cells in locales with a decimal comma.
    """
    return FORMULA.sub(r"\1'", " ".join(printable(text).split()))


def _remarks(report: Report) -> list[str]:
    """One sentence per exercise: its first message, and the number of others."""
    said: dict[str, list[CheckResult]] = defaultdict(list)
    for result in report.checks:
        if result.status in ("failed", "error") and result.message:
            said[result.exercise].append(result)
    lines = ["not isolated (no bubblewrap)"] if report.warning else []
    for exercise, results in said.items():
        more = f" (and {len(results) - 1} more)" if len(results) > 1 else ""
        lines.append(f"{exercise}: {results[0].message.splitlines()[0]}{more}")
    todo = sorted({r.exercise for r in report.checks if r.status == "not attempted"})
    return [*lines, f"not attempted: {', '.join(todo)}"] if todo else lines


def details_of(report: Report) -> str:
    """{"points": {exercise: [got, of]}, "doubts", "sources", "prints": as in the report}."""
    points: dict[str, list[float]] = {}
    for result in report.checks:
        got, most = points.get(result.exercise, (0.0, 0.0))
        points[result.exercise] = [got + result.points, most + result.max_points]
    found = {part: getattr(report, part) for part in PARTS}
    return json.dumps({"points": points, **found}, separators=(",", ":"))


def points_of(row: Grade) -> dict[str, list[float]]:
    """{exercise: [got, of]} before anything is withheld; none for a row with an error."""
    return json.loads(row.details)["points"] if row.details else {}


# --- a row compared with the others ---


def finished(rows: Sequence[Grade], withhold: bool = False) -> list[Grade]:
    """Adds scores, and doubts about tables that two students share or one submits twice."""
    details = [json.loads(row.details) if row.details else {} for row in rows]
    shared, files = _shared(rows, details), Counter((row.student, row.lab) for row in rows)
    done = []
    for at, (row, known) in enumerate(zip(rows, details)):
        count = files[row.student, row.lab]
        words = [f"one of {count} files of this student for one lab"] if count > 1 else []
        if known:
            doubts = _doubts(known, shared.get(at, {}))
            score, lost = _score(known, doubts if withhold else {COPIED} & set(doubts))
            row = replace(row, score=points_text(score))
            words += [f"{name}: {text}" for name, text in doubts.items()]
            words += [f"withheld: {plural(lost, 'point')}"] if lost else []
        done.append(replace(row, doubts=one_line(" | ".join(words))))
    return done


def _shared(rows: Sequence[Grade], details: Sequence[dict]) -> dict[int, dict[str, list[str]]]:
    """{row: {experiment: the other students with the same numbers}}."""
    labs: dict[str, dict[int, Any]] = defaultdict(dict)
    for at, (row, known) in enumerate(zip(rows, details)):
        if known:
            labs[row.lab][at] = known["prints"]
    found: dict[int, dict[str, list[str]]] = {}
    for prints in labs.values():
        for at, tables in copies(prints).items():
            named = {n: {rows[i].student for i in who} for n, who in tables.items()}
            others = {name: sorted(who - {rows[at].student}) for name, who in named.items()}
            found[at] = {name: who for name, who in others.items() if who}
    return found


def _doubts(known: Mapping[str, Any], shared: Mapping[str, list[str]]) -> dict[str, str]:
    doubts = dict(known["doubts"])
    for name, students in shared.items():
        words = f"the same measured numbers as {_names(students)}"
        doubts[name] = "; ".join(filter(None, [doubts.get(name), words]))
    return doubts


def _score(known: Mapping[str, Any], doubts: Collection[str]) -> tuple[float, float]:
    """The points, and those withheld: for doubtful tables, and for answers based on them."""
    held = {item for item, tables in known["sources"].items() if set(tables) & set(doubts)}
    lost = sum(known["points"][item][0] for item in held)
    return sum(got for got, _ in known["points"].values()) - lost, lost


def _names(students: Sequence[str], most: int = 3) -> str:
    rest = [f"{len(students) - most} others"] if len(students) > most else []
    return ", ".join([*students[:most], *rest])


# --- the file ---


def read_rows(path: Path) -> list[Grade]:
    """The rows of an earlier run; InputError for any other file."""
    if not path.exists():
        return []
    try:
        table = pandas.read_csv(path, dtype=str, na_filter=False, encoding="utf-8-sig")
    except ValueError as error:  # of pandas, and of text that is not UTF-8
        raise InputError(f"{path} is there and is no CSV: give another name to --csv") from error
    if list(table) != COLUMNS:
        raise InputError(
            f"{path} is there and is not a table of grades: give another name to --csv"
        )
    return [_readable(Grade(**row)) for row in table.to_dict("records")]


def _readable(row: Grade) -> Grade:
    """The row unchanged, or one to be regraded if a spreadsheet altered its details."""
    try:
        details = json.loads(row.details or "{}")
        assert not row.details or set(details) == {"points", *PARTS}
    except (ValueError, AssertionError):
        return replace(row, graded_from="", details="")
    return row


def as_csv(rows: Iterable[Grade]) -> str:
    """The whole file."""
    lines = [asdict(row) for row in rows]
    return BOM + pandas.DataFrame(lines, columns=COLUMNS).to_csv(index=False, lineterminator="\n")
