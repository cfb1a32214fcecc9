"""Mutants of the course's own solutions lose points, so that the checks see what they are for.

`make test` grades one of each exercise, `make test-full` five more; `--draws 7` takes others. A
mutant that computes the same, or does the same work, stands in `equivalent.py`, with the reason.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import load_lab

from .conftest import Grade
from .equivalent import EQUIVALENT
from .mutations import Mutant, mutants

EACH = 6  # mutants of an exercise, the first of them in `make test`


def sample(draw: int) -> list[Any]:
    params = []
    for lab in lab_names():
        for item in load_lab(lab).items:
            if item.kind == "exercise":
                found = (m for m in mutants(lab, item.name, draw) if m.key not in EQUIVALENT)
                first, *more = islice(found, EACH)
                params += [first, *(pytest.param(m, marks=pytest.mark.full) for m in more)]
    return params


def named(mutant: Mutant) -> str:
    return f"{mutant.lab.partition('_')[0]}-{mutant.exercise}: {mutant.change}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "mutant" in metafunc.fixturenames:
        metafunc.parametrize("mutant", sample(metafunc.config.getoption("--draws")), ids=named)


def test_a_mutant_loses_points(mutant: Mutant, graded: Grade):
    for result in graded(mutant, mutant.exercise):
        if result.status != "passed":
            return
    pytest.fail(
        f"`{mutant.change}` in `{mutant.line}` of {mutant.exercise} gets full points: give a check "
        f"that sees it, or list {mutant.key} in equivalent.py, with the reason"
    )


def test_what_is_listed_is_still_a_mutant():
    listed = {exercise for exercise, _, _ in EQUIVALENT}
    found = {
        mutant.key
        for lab in lab_names()
        for item in load_lab(lab).items
        if item.kind == "exercise" and item.name in listed
        for mutant in mutants(lab, item.name)
    }
    assert set(EQUIVALENT) <= found
