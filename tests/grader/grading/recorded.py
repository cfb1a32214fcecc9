"""Tables and answers that a notebook recorded, and their grading.

    tables_of(submission)                    all tables, by name
    payload_of(item, submission)             the table or the answer of an experiment or a question
    grade_recorded(item, payload, tables, earned)

Runs no code of the submission; but all data may be fabricated, of any type and size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from minitrain.lab.failures import NotAttempted
from minitrain.lab.grading.checks import Graded, Recorded, Row
from minitrain.lab.grading.results import CheckResult, all_checks
from minitrain.lab.grading.running import run_checks
from minitrain.lab.grading.submission import Submission

Records = Mapping[str, Sequence[Mapping[str, Any]]]


class Word(str):
    """A typed string, compared without regard to case and whitespace."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and _bare(self) == _bare(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(_bare(self))


class Tables(dict):
    """Recorded tables by name; `used`: those that were accessed."""

    def __init__(self, tables: Mapping[str, list[Row]], used: Iterable[str] = ()) -> None:
        super().__init__(tables)
        self.used = set(used)

    def __getitem__(self, name: str) -> list[Row]:
        self.used.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.used.add(name)
        return super().get(name, default)


def payload_of(item: type[Graded], submission: Submission) -> Any:
    """The notebook's last recorded table or answer."""
    kind = "answer" if item.kind == "question" else item.kind
    values = submission.recorded.get(kind, {})
    if values.get(item.name) is None:
        raise NotAttempted(f"nothing is recorded: run the cell of '{item.name}' and save")
    return _rows(values[item.name]) if item.kind == "experiment" else _answer(values[item.name])


def tables_of(submission: Submission) -> dict[str, list[Row]]:
    """All tables that the notebook recorded, by name."""
    return tables_from(submission.recorded.get("experiment", {}))


def tables_from(records: Records) -> dict[str, list[Row]]:
    return {name: _rows(table) for name, table in records.items()}


def grade_recorded(
    item: type[Recorded], payload: Any, records: Records, earned: Collection[str]
) -> list[CheckResult]:
    """An experiment or a question, from what the learner's own run recorded.

    earned: the fully passed items; where one that this rests on is missing, the reference stood in
    for the learner's own, and passed checks do not count yet.
    """
    tables = records if isinstance(records, Tables) else tables_from(records)
    missing = [name for name in item.rests_on if name not in earned]
    if item.kind == "question":
        results = run_checks(item, {"value": _answer(payload), "records": tables})
    elif rows := _rows(payload):
        results = run_checks(item, {"table": rows, "records": tables})
    else:
        return all_checks(item, "failed", "the table must be a list of rows, and have at least one")
    return [_not_yet(result, missing) for result in results] if missing else results


def _not_yet(result: CheckResult, missing: Sequence[str]) -> CheckResult:
    """Withholds a check that passed only with a reference; a failed one is unchanged."""
    if result.status != "passed":
        return result
    message = f"right, and counts once you have earned {', '.join(missing)}: then run this again"
    return replace(result, points=0.0, status="withheld", message=message)


def _answer(value: Any) -> Any:
    return Word(value) if isinstance(value, str) else value


def _rows(table: Any) -> list[Row]:
    """The rows of a recorded table; none where it is not a table."""
    if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):
        return []
    return [Row(row) for row in table]


def _bare(text: str) -> str:
    return " ".join(text.split()).casefold()
