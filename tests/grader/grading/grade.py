"""The grading engine: runs a lab's checks on a learner's work, in the grader's own process.

    sandbox = warm(lab)                                    # imports torch while the lab is read
    grade_item(item, f, records, sandbox)                  # in a notebook: function, table, answer
    grade_submission(read_submission(path), lab, sandbox)  # from a file: the whole lab

An exercise is graded with the learner's own earlier functions where they pass and with the course's
where they do not, as `f = lab.grade(f)` does in a notebook: one mistake costs only its own points.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from minitrain.lab.failures import CheckFailed, NotAttempted
from minitrain.lab.grading.attempt import Spent, attempt_of, live_attempt
from minitrain.lab.grading.checks import Exercise, Graded
from minitrain.lab.grading.course import LabChecks, lab_of, pickled_reference
from minitrain.lab.grading.doubts import COPIED, doubts_of, is_copied, prints_of
from minitrain.lab.grading.recorded import Records, Tables, grade_recorded, payload_of, tables_of
from minitrain.lab.grading.results import CheckResult, Report, all_checks
from minitrain.lab.grading.running import run_checks
from minitrain.lab.grading.submission import Submission
from minitrain.lab.sandbox.limits import Limits
from minitrain.lab.sandbox.sandbox import Sandbox
from minitrain.paths import course_root


def warm(lab: LabChecks, limits: Limits | None = None) -> Sandbox:
    """Starts a sandbox for this lab in the background; it ends with this process."""
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
        return all_checks(item, "failed", str(refused))
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
            graded = all_checks(item, "not attempted", str(reason))
        if all(result.status == "passed" for result in graded):
            earned.add(item.name)
        elif issubclass(item, Exercise):
            substitutes[item.name] = pickled_reference(item)
        results += graded
    solutions = course_root() / "solutions"
    doubts = doubts_of(recorded, lab.name, solutions)
    exercises = [item.name for item in lab.items if issubclass(item, Exercise)]
    if is_copied(replace(submission, lab=lab.name), exercises, solutions):
        doubts[COPIED] = "every exercise is the course's own solution, with other layout at most"
        sources |= {name: [COPIED] for name in exercises}
    prints = prints_of(recorded, lab.name)
    file = str(submission.path)
    return Report(lab.name, tuple(results), sandbox.warning, doubts, sources, prints, file)
