"""Every wrong submission fails with its own words; every right one gets full marks.

`make test` grades four wrong ones of each exercise and all right ones of our own; the other wrong
ones, and those of readers, take `make test-full`. What the checks draw is the same in every run, so
that a red one is the fault of a change. After work on checks try other draws, of all of them:
`pytest tests/grading/test_banks.py -m "full or not full" --draws 7`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from inspect import getsource, isfunction
from pathlib import Path
from typing import Any

import pytest

from minitrain.lab.grading.attempt import attempt_of
from minitrain.lab.grading.checks import checks_of
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import LabChecks, load_lab, pickled_reference
from minitrain.lab.grading.results import CheckResult
from minitrain.lab.grading.running import run_check
from minitrain.lab.sandbox.limits import PATIENT
from minitrain.lab.sandbox.sandbox import Sandbox

from .bank import Specimen, bank

HERE = Path(__file__).parent
WRONG, RIGHT = bank(HERE / "wrong"), bank(HERE / "right")
BLIND = HERE / "blind"  # by readers of the notebooks alone
FEW = 4  # wrong ones of an exercise that `make test` grades

Grade = Callable[[Specimen, str], Iterator[CheckResult]]


@pytest.fixture(scope="module")
def graded() -> Iterator[Grade]:
    """graded(specimen, exercise) -> its checks in turn; one sandbox a lab, the one in use.

    Those in whose source the specimen's words stand come first: then most need no other.
    """
    labs: dict[str, LabChecks] = {}
    sandboxes: dict[str, Sandbox] = {}

    def grade(specimen: Specimen, exercise: str) -> Iterator[CheckResult]:
        name = specimen.lab
        if name not in sandboxes:
            for old in list(sandboxes):
                sandboxes.pop(old).close()
            labs[name] = load_lab(name)
            sandboxes[name] = Sandbox(labs[name].hidden, PATIENT)
        exercises = [item for item in labs[name].items if item.kind == "exercise"]
        ours = {e.name: pickled_reference(e) for e in exercises if e.name != exercise}
        item = labs[name].find("exercise", exercise)
        attempt = attempt_of(item, specimen.submission(), ours, sandboxes[name])
        checks = sorted(checks_of(item), key=lambda c: len(specimen.missing(words_of(c.function))))
        return (run_check(item, check, {"submission": attempt}) for check in checks)

    yield grade
    for sandbox in sandboxes.values():
        sandbox.close()


@cache
def words_of(check: Any) -> str:
    """The source of a check and of the functions beside it that it calls, texts joined."""
    called = (check.__globals__.get(name) for name in check.__code__.co_names)
    beside = [f for f in called if isfunction(f) and f.__module__ == check.__module__]
    return re.sub(r'"\s*f?"', "", "".join(map(getsource, [check, *beside])))


@pytest.fixture(autouse=True)
def draws(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = request.config.getoption("--draws")
    monkeypatch.setattr("minitrain.lab.grading.running.secrets.randbits", lambda bits: seed)


def named(specimen: Specimen) -> str:
    return f"{specimen.number}-{specimen.name}"


def in_full(specimens: Iterable[Specimen]) -> list[Any]:
    return [pytest.param(specimen, marks=pytest.mark.full) for specimen in specimens]


def in_turn(specimens: Iterable[Specimen]) -> list[Any]:
    """A few of each exercise in `make test`, the others in `make test-full`."""
    seen: Counter[tuple[str, str]] = Counter()
    few, others = [], []
    for specimen in specimens:
        exercise = (specimen.lab, specimen.exercise)
        (few if seen[exercise] < FEW else others).append(specimen)
        seen[exercise] += 1
    return [*few, *in_full(others)]


@pytest.mark.parametrize("specimen", [*in_turn(WRONG), *in_full(bank(BLIND / "wrong"))], ids=named)
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


@pytest.mark.parametrize("specimen", [*RIGHT, *in_full(bank(BLIND / "right"))], ids=named)
def test_a_right_one_gets_full_marks(specimen: Specimen, graded: Grade):
    lab, submission = load_lab(specimen.lab), specimen.submission()
    defined = [
        item.name for item in lab.items if item.kind == "exercise" and submission.defines(item.name)
    ]
    assert defined, f"{specimen.path} defines no exercise of {lab.name}"
    for exercise in defined:
        results = list(graded(specimen, exercise))
        assert all(result.status == "passed" for result in results), results


@pytest.mark.parametrize("name", lab_names())
def test_the_banks_are_large_enough(name: str):
    """At least a few wrong submissions and a right one for every exercise."""
    wrong = [specimen.exercise for specimen in WRONG if specimen.lab == name]
    right = [specimen.submission() for specimen in RIGHT if specimen.lab == name]
    for item in load_lab(name).items:
        if item.kind == "exercise":
            assert wrong.count(item.name) >= FEW, (
                f"{item.name}: {wrong.count(item.name)} wrong submissions"
            )
            assert any(s.defines(item.name) for s in right), f"{item.name}: no right submission"
