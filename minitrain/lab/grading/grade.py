"""The grading engine: the checks of a lab, run on what a learner made, in the grader's own process.

    sandbox = warm(lab)                                    # loads torch while the lab is read
    grade_item(item, f, records, sandbox)                  # in a notebook: function, table, answer
    grade_submission(read_submission(path), lab, sandbox)  # from a file: the whole lab

An exercise is graded with the learner's own earlier functions where they pass and with the course's
where they do not, as `f = lab.grade(f)` does in a notebook: one mistake costs its own points only.
"""

from __future__ import annotations

import inspect
import secrets
import signal
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NoReturn

from minitrain.generators import generator_states, restore_generators, seed_generators
from minitrain.lab.failures import CheckFailed, NotAttempted
from minitrain.lab.grading.attempt import Spent, attempt_of, live_attempt
from minitrain.lab.grading.checks import (
    Check,
    Exercise,
    Graded,
    Question,
    Recorded,
    Row,
    checks_of,
)
from minitrain.lab.grading.course import LabChecks, lab_of, pickled_reference
from minitrain.lab.grading.doubts import doubts_of, prints_of
from minitrain.lab.grading.expect import Word
from minitrain.lab.grading.submission import Submission
from minitrain.lab.sandbox.limits import Limits
from minitrain.lab.sandbox.sandbox import Sandbox
from minitrain.paths import course_root
from minitrain.words import printable

JUDGING_SECONDS = 10.0  # for a check to read what a learner may have invented, of any size
Records = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class CheckResult:
    """`status` is passed, failed, error (of the check itself), not attempted or withheld.

    The message quotes what a submission wrote: `printable`, wherever it goes from here.
    """

    exercise: str
    check: str
    points: float
    max_points: float
    status: str
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", printable(self.message))


@dataclass(frozen=True)
class Report:
    """A graded lab; `warning` says what an instructor must know of how it was graded.

    doubts: what to ask about an experiment's table. sources: the tables that an experiment or a
    question was graded from. prints: by which a copy of a table is found (`doubts.py`).
    """

    lab: str
    checks: tuple[CheckResult, ...]
    warning: str | None = None
    doubts: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, Sequence[str]] = field(default_factory=dict)
    prints: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def score(self) -> float:
        return sum(result.points for result in self.checks)

    @property
    def max_score(self) -> float:
        return sum(result.max_points for result in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """What `--json` prints."""
        scores = {"lab": self.lab, "score": self.score, "max_score": self.max_score}
        checks = [asdict(result) for result in self.checks]
        return {**scores, "warning": self.warning, "doubts": dict(self.doubts), "checks": checks}

    def withheld(self) -> Report:
        """The same without the points of doubtful tables, nor of the answers read off them."""
        return replace(self, checks=tuple(map(self._without_doubt, self.checks)))

    def _without_doubt(self, result: CheckResult) -> CheckResult:
        words = [self.doubts[name] for name in self.doubtful(result.exercise)]
        if not words or not result.points:
            return result
        return replace(result, points=0.0, status="withheld", message=f"withheld: {words[0]}")

    def doubtful(self, item: str) -> list[str]:
        """The tables behind an experiment or a question that are in doubt."""
        return [name for name in self.sources.get(item, ()) if name in self.doubts]


def warm(lab: LabChecks, limits: Limits | None = None) -> Sandbox:
    """A sandbox for this lab that starts in the background; it ends with this process."""
    sandbox = Sandbox(lab.hidden, limits)
    sandbox.start()
    return sandbox


def grade_item(
    item: type[Graded],
    payload: Any,
    records: Records,
    sandbox: Sandbox,
    earned: Collection[str] = (),
) -> list[CheckResult]:
    """One exercise (function or class), experiment (rows) or question (value), in a notebook."""
    if not issubclass(item, Exercise):
        return grade_recorded(item, payload, records, earned)
    lab = lab_of(sys.modules[item.__module__])
    try:
        attempt = live_attempt(payload, item, lab, sandbox)
    except CheckFailed as refused:
        return _all(item, "failed", str(refused))
    return run_checks(item, {"submission": attempt})


def grade_submission(submission: Submission, lab: LabChecks, sandbox: Sandbox) -> Report:
    """Every exercise, experiment and question of a lab, from a file."""
    results: list[CheckResult] = []
    substitutes: dict[str, bytes] = {}
    sources: dict[str, list[str]] = {}
    recorded, spent = tables_of(submission), Spent()
    earned: set[str] = set()
    for item in lab.items:
        try:
            if issubclass(item, Exercise):
                attempt = attempt_of(item, submission, substitutes, sandbox, spent)
                graded = run_checks(item, {"submission": attempt})
            else:
                tables = Tables(recorded, used={item.name} & set(recorded))
                graded = grade_recorded(item, payload_of(item, submission), tables, earned)
                sources[item.name] = sorted(tables.used)
        except NotAttempted as reason:
            graded = _all(item, "not attempted", str(reason))
        if all(result.status == "passed" for result in graded):
            earned.add(item.name)
        elif issubclass(item, Exercise):
            substitutes[item.name] = pickled_reference(item)
        results += graded
    doubts = doubts_of(recorded, lab.name, course_root() / "solutions")
    prints = prints_of(recorded, lab.name)
    return Report(lab.name, tuple(results), sandbox.warning, doubts, sources, prints)


class Tables(dict):
    """Recorded tables by name; `used` are those that were asked for."""

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
    """The table or the answer that the notebook recorded last."""
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

    earned: the items that passed whole; where one is missing that this rests on, the reference
    stood in for the learner's own, and what passes here does not count yet.
    """
    tables = records if isinstance(records, Tables) else tables_from(records)
    missing = [name for name in item.rests_on if name not in earned]
    if item.kind == "question":
        results = run_checks(item, {"value": _answer(payload), "records": tables})
    elif rows := _rows(payload):
        results = run_checks(item, {"table": rows, "records": tables})
    else:
        return _all(item, "failed", "the table must be a list of rows, and have at least one")
    return [_not_yet(result, missing) for result in results] if missing else results


def _not_yet(result: CheckResult, missing: Sequence[str]) -> CheckResult:
    """A check that passed by what the learner has not earned; one that failed stays as it is."""
    if result.status != "passed":
        return result
    message = f"right, and counts once you have earned {', '.join(missing)}: then run this again"
    return replace(result, points=0.0, status="withheld", message=message)


def run_checks(item: type[Graded], fixtures: dict[str, Any]) -> list[CheckResult]:
    """Each check gets the fixtures that it names."""
    return [run_check(item, check, fixtures) for check in checks_of(item)]


def run_check(item: type[Graded], check: Check, fixtures: dict[str, Any]) -> CheckResult:
    """One of them; whatever it or the learner's code raises is in the result."""
    wanted = list(inspect.signature(check.function).parameters)[1:]
    status, message, points = "passed", "", check.points
    try:
        with unpredictable(), within(JUDGING_SECONDS + _running_seconds(fixtures)):
            check.function(item(), **{name: fixtures[name] for name in wanted})
    except NotAttempted:
        status, message, points = "not attempted", "not filled in yet", 0.0
    except CheckFailed as failure:
        status, message, points = "failed", _told(item, failure), 0.0
    except Exception as error:
        attempt = fixtures.get("submission")
        status, message = _stumbled(error, attempt.never_waited() if attempt else None)
        points = 0.0
    return CheckResult(item.name, check.title, points, check.points, status, message)


def _running_seconds(fixtures: dict[str, Any]) -> float:
    """What the sandbox may take of a check's time."""
    attempt = fixtures.get("submission")
    return attempt.sandbox.limits.exercise_seconds if attempt else 0.0


def _told(item: type[Graded], failure: CheckFailed) -> str:
    """An answer is to be found, not copied from the message."""
    is_secret = issubclass(item, Question) and not item.tells
    return failure.secretive if is_secret else str(failure)


def _stumbled(error: Exception, never_waited: str | None) -> tuple[str, str]:
    """A check stumbles over what came back: another type or shape, or nobody waited for a time."""
    if never_waited is not None:
        return "failed", never_waited
    return "error", (
        f"what came back is not what the check can read ({type(error).__name__}: {error}): "
        "compare the type and the shape of what you return with the docstring"
    )


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """CheckFailed once the time is up; only in the main thread, and not on Windows."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not hasattr(signal, "SIGALRM"):
        yield
        return

    def late(*_: object) -> NoReturn:
        raise CheckFailed(
            f"it took the check more than {seconds:g} s: is it of the size that was asked for?"
        )

    handler = signal.signal(signal.SIGALRM, late)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)  # another's, such as pytest's
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, left, interval)


@contextmanager
def unpredictable() -> Iterator[None]:
    """Inputs that no submission can know, and the caller's own random numbers as they were."""
    before = generator_states()
    seed_generators(secrets.randbits(32))
    try:
        yield
    finally:
        restore_generators(before)


def _all(item: type[Graded], status: str, message: str) -> list[CheckResult]:
    return [
        CheckResult(item.name, check.title, 0.0, check.points, status, message)
        for check in checks_of(item)
    ]


def _answer(value: Any) -> Any:
    return Word(value) if isinstance(value, str) else value


def _rows(table: Any) -> list[Row]:
    """The rows of a recorded table; none where it is no table."""
    if not isinstance(table, list) or not all(isinstance(row, dict) for row in table):
        return []
    return [Row(row) for row in table]
