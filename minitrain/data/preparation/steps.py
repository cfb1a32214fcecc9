"""The steps that look at one document at a time: a row in, a row out.

    steps = [Edit(sentence_lines), Filter((*GOPHER, *C4)), Mask()]
    row = run_steps(steps, {"text": …})        row["dropped"]: which rule, or ""

A step is a function of a row and nothing else, so that it runs wherever rows are mapped, as it is:
`dataset.map(step)` of `datasets`, streaming or not, with as many processes as you like, and
`dataset.map(step)` of Ray Data; then `dataset.filter(is_kept)`. A row that is dropped goes through
all later steps untouched and keeps the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from minitrain.data.preparation.documents import Row
from minitrain.data.preparation.filters.rule import Rule, first_failed

Step = Callable[[Row], Row]


@dataclass(frozen=True)
class Filter:
    """`dropped` is the first rule that the text fails."""

    rules: tuple[Rule, ...]

    def __call__(self, row: Row) -> Row:
        dropped = row.get("dropped") or first_failed(self.rules, row["text"])
        return {**row, "dropped": dropped}


@dataclass(frozen=True)
class Edit:
    """`text` is changed; where nothing is left of it, it is dropped."""

    edit: Callable[[str], str]

    def __call__(self, row: Row) -> Row:
        if row.get("dropped"):
            return row
        text = self.edit(row["text"])
        return {**row, "text": text, "dropped": "" if text.strip() else "nothing_left"}


def run_steps(steps: Iterable[Step], row: Row) -> Row:
    """The row after all steps, its `dropped` set."""
    row = {"dropped": "", **row}
    for step in steps:
        row = step(row)
    return row


def is_kept(row: Row) -> bool:
    return not row["dropped"]
