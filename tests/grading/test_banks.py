"""Every wrong submission fails with its own words; every right one gets full marks.

`make test` grades two wrong ones of each exercise and a right one, `make test-full` all others;
`--sample 7` takes another two and one. The inputs that the checks draw are the same in every run,
so that a red one is the fault of a change. After work on checks try other inputs, for all
submissions: `pytest tests/grading/test_banks.py -m "full or not full" --draws 7`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import load_lab
from minitrain.lab.grading.variants import variant

from ..touched import touched
from .bank import Specimen, bank
from .conftest import Grade

BANKS = Path(__file__).parent / "banks"
WRONG, RIGHT = bank(BANKS / "wrong"), bank(BANKS / "right")


def named(specimen: Specimen) -> str:
    return f"{specimen.number}-{specimen.name}"


def sample(specimens: Iterable[Specimen], few: int, seed: int) -> list[Any]:
    """`few` of each exercise are for `make test`, the others for `make test-full`."""
    exercises: dict[tuple[str, str], list[Specimen]] = {}
    for specimen in specimens:
        exercises.setdefault((specimen.number, specimen.exercise), []).append(specimen)
    params = []
    for found in exercises.values():
        begin = seed * few % len(found)
        taken = {id(found[(begin + i) % len(found)]) for i in range(few)}
        params += [
            pytest.param(each, marks=[] if id(each) in taken else [pytest.mark.full])
            for each in found
        ]
    return params


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--sample")
    for name, specimens, few in (("wrong", WRONG, 2), ("right", RIGHT, 1)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, sample(specimens, few, seed), ids=named)


def test_a_wrong_one_fails_with_its_own_words(wrong: Specimen, graded: Grade):
    assert wrong.exercise and wrong.says, f"{named(wrong)} needs a head: see tests/grading/bank.py"
    said = ""
    for result in graded(wrong, wrong.exercise):  # until all its words are said
        assert result.status in ("passed", "failed"), result
        said += result.message + "\n"
        if said.strip() and not wrong.missing(said):
            return
    pytest.fail(f"not said: {wrong.missing(said)}; said: {said or 'nothing'}")


def test_a_right_one_gets_full_marks(right: Specimen, graded: Grade):
    results = list(graded(right, right.exercise))
    assert all(result.status == "passed" for result in results), results


@pytest.mark.parametrize("name", lab_names())
def test_every_exercise_has_wrong_ones_and_a_right_one(name: str):
    exercises = {item.name for item in load_lab(name).items if item.kind == "exercise"}
    for specimens in (WRONG, RIGHT):
        assert exercises == {s.exercise for s in specimens if s.lab == name}


def test_a_change_touches_its_labs():
    every = sorted(name.partition("_")[0] for name in lab_names())
    assert touched(["solutions/e09b_x.py", "tests/grading/banks/wrong/e12.diff"]) == ["e09b", "e12"]
    assert touched(["minitrain/parallel/expert/exchange.py", "README.md"]) == ["e02d"]
    assert touched(["tests/labs/probes/in_turn.py"]) == touched(["tests/grader/x.py"]) == every


def is_of_mistakes(table: Any) -> bool:
    """True for a table of `grading/variants.py`: edits, each with a message."""
    pairs = table if isinstance(table, (list, tuple)) else []
    shapes = [[*map(type, pair)] for pair in pairs if isinstance(pair, tuple)]
    return bool(pairs) and shapes == [[tuple, str]] * len(pairs)


def are_edits(table: Any, reference: str) -> bool:
    try:
        return all(variant(reference, *edits) for edits, _ in table)
    except AssertionError:  # a piece is not in its text
        return False


def test_every_likely_mistake_is_an_edit_of_a_reference():
    tables = 0
    for items in (load_lab(name).items for name in lab_names()):
        references = [item.reference for item in items if item.kind == "exercise"]
        for place in (sys.modules[items[0].__module__], *items):
            for name, table in list(vars(place).items()):
                if is_of_mistakes(table):
                    tables += 1
                    assert any(are_edits(table, reference) for reference in references), name
    assert tables > 20
