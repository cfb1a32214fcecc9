"""Every wrong submission fails with its own words; every right one gets full marks.

`make test` grades two wrong ones of each exercise and a right one, `make test-full` all others. The
inputs that the checks draw are the same in every run, so that a red one is the fault of a change.
After work on checks try other inputs, for all submissions:
`pytest tests/grading/test_banks.py -m "full or not full" --draws 7`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import load_lab

from .bank import Specimen, bank
from .conftest import Grade

BANKS = Path(__file__).parent / "banks"
WRONG, RIGHT = bank(BANKS / "wrong"), bank(BANKS / "right")


def named(specimen: Specimen) -> str:
    return f"{specimen.number}-{specimen.name}"


def sample(specimens: Iterable[Specimen], few: int) -> list[Any]:
    """So many of each exercise in `make test`, the others in `make test-full`."""
    seen: Counter[tuple[str, str]] = Counter()
    params = []
    for specimen in specimens:
        seen[specimen.number, specimen.exercise] += 1
        is_more = seen[specimen.number, specimen.exercise] > few
        params.append(pytest.param(specimen, marks=[pytest.mark.full] if is_more else []))
    return params


@pytest.mark.parametrize("specimen", sample(WRONG, 2), ids=named)
def test_a_wrong_one_fails_with_its_own_words(specimen: Specimen, graded: Grade):
    assert specimen.exercise and specimen.says, (
        f"{named(specimen)} needs a head: see tests/grading/bank.py"
    )
    said = ""
    for result in graded(specimen, specimen.exercise):  # until all its words are said
        assert result.status in ("passed", "failed"), result
        said += result.message + "\n"
        if said.strip() and not specimen.missing(said):
            return
    pytest.fail(f"not said: {specimen.missing(said)}; said: {said or 'nothing'}")


@pytest.mark.parametrize("specimen", sample(RIGHT, 1), ids=named)
def test_a_right_one_gets_full_marks(specimen: Specimen, graded: Grade):
    results = list(graded(specimen, specimen.exercise))
    assert all(result.status == "passed" for result in results), results


@pytest.mark.parametrize("name", lab_names())
def test_every_exercise_has_wrong_ones_and_a_right_one(name: str):
    exercises = {item.name for item in load_lab(name).items if item.kind == "exercise"}
    for specimens in (WRONG, RIGHT):
        assert exercises == {s.exercise for s in specimens if s.lab == name}
