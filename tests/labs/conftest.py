"""`pytest tests/labs --submission labs/`: the labs' own checks, on a learner's work or the solutions.

    --submission FILE or FOLDER    notebooks or .py files; without it, the solutions

Each check is a test. What was not attempted is skipped (in the solutions it fails).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from minitrain.lab.failures import NotAttempted
from minitrain.lab.grading.attempt import Attempt, attempt_of
from minitrain.lab.grading.checks import Exercise
from minitrain.lab.grading.collect import find_lab, find_submissions
from minitrain.lab.grading.course import LabChecks, lab_of, pickled_reference
from minitrain.lab.grading.grade import warm
from minitrain.lab.grading.recorded import payload_of, tables_of
from minitrain.lab.grading.running import unpredictable
from minitrain.lab.grading.submission import Submission, read_submission
from minitrain.lab.sandbox.limits import PATIENT
from minitrain.lab.sandbox.sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    help_text = "a notebook, .py file or folder to grade, instead of the solutions"
    parser.addoption("--submission", default=None, help=help_text)


@dataclass
class HandedIn:
    """What was handed in for one lab, and what is known of it so far."""

    submission: Submission
    sandbox: Sandbox
    is_solution: bool
    substitutes: dict[str, bytes] = field(default_factory=dict)

    def attempt(self, item: type[Exercise]) -> Attempt:
        try:
            return attempt_of(item, self.submission, self.substitutes, self.sandbox)
        except NotAttempted as reason:
            self.replace(item)
            return self.missing(str(reason))

    def replace(self, item: type[Exercise]) -> None:
        """Later exercises get the course's version of this one."""
        if item.name not in self.substitutes:
            self.substitutes[item.name] = pickled_reference(item)

    def missing(self, reason: str) -> Any:
        if self.is_solution:
            pytest.fail(f"{self.submission.path}: {reason}")
        pytest.skip(reason)


@pytest.fixture(scope="module")
def handed_in(request: pytest.FixtureRequest) -> Iterator[HandedIn]:
    lab = lab_of(request.module)
    given = request.config.getoption("--submission", default=None)
    path = _solution(lab) if given is None else _given(Path(given), lab)
    if path is None:
        pytest.skip(f"nothing for {lab.name} in {given or 'solutions/'}")
    with warm(lab, PATIENT) as sandbox:
        yield HandedIn(read_submission(path), sandbox, given is None)


def _solution(lab: LabChecks) -> Path | None:
    """The executed notebook, which has the recorded tables too."""
    path = ROOT / "solutions" / f"{lab.name}.ipynb"
    return path if path.exists() else None


def _given(path: Path, lab: LabChecks) -> Path | None:
    paths = [entry.path for entry in find_submissions(path, ROOT)] if path.is_dir() else [path]
    return next((p for p in paths if find_lab(read_submission(p), ROOT) == lab.name), None)


@pytest.fixture
def submission(request: pytest.FixtureRequest, handed_in: HandedIn) -> Attempt:
    return handed_in.attempt(request.cls)


@pytest.fixture
def records(handed_in: HandedIn) -> dict[str, Any]:
    return tables_of(handed_in.submission)


@pytest.fixture
def table(request: pytest.FixtureRequest, handed_in: HandedIn) -> Any:
    return _recorded(request, handed_in)


@pytest.fixture
def value(request: pytest.FixtureRequest, handed_in: HandedIn) -> Any:
    return _recorded(request, handed_in)


def _recorded(request: pytest.FixtureRequest, handed_in: HandedIn) -> Any:
    if handed_in.submission.path.suffix == ".py":
        pytest.skip("a .py file carries no recorded data")
    try:
        return payload_of(request.cls, handed_in.submission)
    except NotAttempted as reason:
        return handed_in.missing(str(reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Inputs nobody can know; an exercise that fails is replaced for those that build on it."""
    handed_in, graded = item.funcargs.get("handed_in"), getattr(item, "cls", None)  # type: ignore[attr-defined]
    try:
        with unpredictable():
            return (yield)
    except BaseException as error:
        if handed_in is not None and issubclass(graded, Exercise):
            handed_in.replace(graded)
        if handed_in is not None and isinstance(error, NotAttempted):
            handed_in.missing(str(error))
        raise
