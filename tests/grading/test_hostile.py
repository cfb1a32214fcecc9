"""Each attack costs its own points, is told what it did, and leaves the grader as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from minitrain.lab.grading.attempt import attempt_of
from minitrain.lab.grading.checks import Exercise
from minitrain.lab.grading.course import LabChecks, load_lab, pickled_reference
from minitrain.lab.grading.grade import grade_submission
from minitrain.lab.grading.results import CheckResult
from minitrain.lab.grading.running import run_checks
from minitrain.lab.grading.submission import Submission
from minitrain.lab.sandbox import bubblewrap
from minitrain.lab.sandbox.limits import PATIENT
from minitrain.lab.sandbox.sandbox import Sandbox

from .bank import Specimen, bank

ALL = bank(Path(__file__).parent / "hostile")
SPECIMENS = [specimen for specimen in ALL if specimen.number == "any"]
ON_LABS = [specimen for specimen in ALL if specimen.number != "any"]

# These are also held where the kernel has no walls: by the audit hook, the limits and the watch.
HELD_WITHOUT_BUBBLEWRAP = [
    *("imports_the_reference", "opens_the_reference", "reads_the_solutions", "deletes_the_tests"),
    *("opens_a_socket", "kills_its_parent", "leaves_a_daemon", "forged_reply_and_out"),
    *("process_bomb", "memory_bomb", "endless_loop", "fills_the_disk", "prints_gigabytes"),
]

# Bubblewrap alone answers these in words of its own; without it they lose their points all the same.
ANSWERED_BY_BUBBLEWRAP = ("rotate_opens_its_parents_files", "rotate_reads_its_parents_memory")


def attacked(item: type[Exercise], submission: Submission, sandbox: Sandbox) -> list[CheckResult]:
    return run_checks(item, {"submission": attempt_of(item, submission, {}, sandbox)})


def holds(specimen: Specimen, tiny, honest: Submission, sandbox: Sandbox) -> None:
    item = tiny.find("exercise", specimen.exercise)
    results = attacked(item, specimen.submission(), sandbox)
    assert any(result.status == "failed" for result in results), results
    assert all(result.status in ("failed", "passed") for result in results), results
    said = "\n".join(result.message for result in results)
    assert not specimen.missing(said), f"not said: {specimen.missing(said)}, but: {said}"
    after = attacked(tiny.find("exercise", "chunk_sizes"), honest, sandbox)
    assert all(result.status == "passed" for result in after), after


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda s: s.name)
def test_an_attack_costs_its_own_points(specimen, tiny, honest, sandbox):
    holds(specimen, tiny, honest, sandbox)


@pytest.mark.parametrize(
    "specimen", [s for s in SPECIMENS if s.name in HELD_WITHOUT_BUBBLEWRAP], ids=lambda s: s.name
)
def test_also_without_bubblewrap(specimen, tiny, honest, open_sandbox):
    holds(specimen, tiny, honest, open_sandbox)


@pytest.fixture(scope="module")
def lab_sandbox() -> Iterator[Callable[[LabChecks], Sandbox]]:
    """Of a lab; one at a time, the specimens come lab by lab."""
    made: dict[str, Sandbox] = {}

    def of(lab: LabChecks) -> Sandbox:
        if lab.name not in made:
            for old in list(made):
                made.pop(old).close()
            made[lab.name] = Sandbox(lab.hidden, PATIENT)
        return made[lab.name]

    yield of
    for sandbox in made.values():
        sandbox.close()


@pytest.mark.parametrize("specimen", ON_LABS, ids=lambda s: f"{s.number}-{s.name}")
def test_points_of_a_lab_need_its_technique(specimen, lab_sandbox):
    """The attack's own words are said, and no check passes that the attack was made for."""
    lab = load_lab(specimen.lab)
    exercises = [item for item in lab.items if item.kind == "exercise"]
    ours = {e.name: pickled_reference(e) for e in exercises if e.name != specimen.exercise}
    item = lab.find("exercise", specimen.exercise)
    attempt = attempt_of(item, specimen.submission(), ours, lab_sandbox(lab))
    results = run_checks(item, {"submission": attempt})
    said = "\n".join(result.message for result in results)
    if specimen.name not in ANSWERED_BY_BUBBLEWRAP or bubblewrap.find():
        assert not specimen.missing(said), f"not said: {specimen.missing(said)}, but: {said}"
    assert sum(r.points for r in results) <= sum(r.max_points for r in results) / 3, results


def test_every_attack_that_is_known_is_in_the_bank():
    names = {specimen.name for specimen in SPECIMENS}
    assert set(HELD_WITHOUT_BUBBLEWRAP) <= names
    assert all(specimen.exercise and specimen.says for specimen in ALL)


def test_the_rest_of_the_same_file_keeps_its_points(tiny, honest, sandbox):
    worst = [s for s in SPECIMENS if s.name in ("os_exit", "patched_allclose", "deadlock")]
    for specimen in worst:
        cells = (*honest.cells, *specimen.submission().cells)
        report = grade_submission(replace(honest, cells=cells), tiny, sandbox)
        others = [r for r in report.checks if r.exercise != specimen.exercise]
        assert {r.status for r in others if r.exercise in ("chunk_sizes", "sum_over_ranks")} == {
            "passed"
        }


def test_a_daemon_is_gone_after_its_run():
    left = [p for p in psutil.process_iter(["cmdline"]) if "4321" in (p.info["cmdline"] or [])]
    assert not left


def test_no_pickle_was_loaded():
    assert not Path("/tmp/minitrain-was-here").exists()
