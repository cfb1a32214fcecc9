"""Mutants of right solutions lose points, so that the checks see what they are for.

`make test` grades one of each exercise, `make test-full` all. The survivors of one lab:

    pytest tests/grading/test_mutations.py --mutants 999 -k e09- -qn2

`--draws 7` takes others and grades them with other inputs. A mutant that computes the same and does
the same work stands in `equivalent.py`, with the reason. Open tasks (`by_score`) are left out: a
mutant that reaches the score has the points.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import NoReturn

import pytest

from minitrain.lab.failures import NotAttempted
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import load_lab

from .conftest import Grade
from .equivalent import EQUIVALENT
from .mutations import Mutant, mutants


def sample(draw: int, each: int) -> list[Mutant]:
    """The first mutants of each exercise."""
    return [
        mutant
        for lab in lab_names()
        for item in load_lab(lab).items
        if item.kind == "exercise" and not getattr(item, "by_score", False)
        for mutant in islice(
            (m for m in mutants(lab, item.name, draw) if m.key not in EQUIVALENT), each
        )
    ]


def named(mutant: Mutant) -> str:
    return f"{mutant.lab.partition('_')[0]}-{mutant.exercise}: {mutant.change} in {mutant.of or 'ours'}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    option = metafunc.config.getoption
    if "mutant" in metafunc.fixturenames:
        metafunc.parametrize("mutant", sample(option("--draws"), option("--mutants")), ids=named)


def test_a_mutant_loses_points(mutant: Mutant, graded: Grade):
    with suppress(NotAttempted):  # what is left of it is a stub
        if all(result.status == "passed" for result in graded(mutant, mutant.exercise)):
            survived(mutant)


def survived(mutant: Mutant) -> NoReturn:
    pytest.fail(
        f"`{mutant.change}` in `{mutant.line}` of {mutant.exercise} gets full points: give a check "
        f"that sees it, or list {mutant.key} in equivalent.py, with the reason",
        pytrace=False,
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
