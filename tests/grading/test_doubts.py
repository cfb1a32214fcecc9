"""Which recorded tables an instructor is told to ask about, and which never."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from minitrain.lab.grading.clocked import CLOCKED
from minitrain.lab.grading.collect import Entry
from minitrain.lab.grading.course import load_lab
from minitrain.lab.grading.doubts import (
    COPIED,
    copies,
    doubts_of,
    impossible,
    is_copied,
    prints_of,
)
from minitrain.lab.grading.grade import grade_submission
from minitrain.lab.grading.results import CheckResult, Report
from minitrain.lab.grading.rows import Grade, finished, graded
from minitrain.lab.grading.submission import read_submission
from minitrain.lab.grading.summary import summary
from minitrain.lab.sandbox.limits import PATIENT
from minitrain.lab.sandbox.loader import Cell
from minitrain.lab.sandbox.sandbox import Sandbox
from minitrain.paths import course_root

SOLUTIONS = course_root() / "solutions"
LABS = sorted(path.stem for path in SOLUTIONS.glob("e*.ipynb"))
SIZES = [4096, 16384, 65536, 262144, 1048576]
Rows = list[dict[str, Any]]


def recorded(lab: str) -> dict[str, Rows]:
    return read_submission(SOLUTIONS / f"{lab}.ipynb").recorded.get("experiment", {})


def measured_anew(lab: str) -> dict[str, Rows]:
    """As on another machine: other times, and every other number the same."""
    tables = recorded(lab)
    for name, columns in CLOCKED.get(lab, {}).items():
        for row in tables[name]:
            row.update({c: row[c] * random.uniform(0.5, 2) for c in columns})
    return tables


@pytest.mark.parametrize("lab", LABS)
def test_who_measured_alone_is_not_asked(lab):
    ada, bob = measured_anew(lab), measured_anew(lab)
    assert doubts_of(ada, lab, SOLUTIONS) == {}
    assert not any(copies({n: prints_of(t, lab) for n, t in zip("ab", (ada, bob))}).values())


@pytest.mark.parametrize("lab", sorted(CLOCKED))
def test_a_copy_of_the_solutions_is_named(lab):
    found = doubts_of(recorded(lab), lab, SOLUTIONS)
    assert set(found) == set(CLOCKED[lab])
    assert all("those recorded in solutions/" in words for words in found.values())


@pytest.mark.parametrize("lab", sorted(CLOCKED))
def test_the_clocked_columns_are_those_of_the_labs(lab):
    tables = recorded(lab)
    for name, columns in CLOCKED[lab].items():
        assert all(set(columns) <= set(row) for row in tables[name])


def test_a_copy_in_part_is_one_too():
    lab, mine = "e00_ranks_and_collectives", measured_anew("e00_ranks_and_collectives")
    mine["ring_or_doubling"][:3] = recorded(lab)["ring_or_doubling"][:3]
    assert set(doubts_of(mine, lab, SOLUTIONS)) == {"ring_or_doubling"}


def test_without_solutions_nothing_is_compared(tmp_path):
    lab = "e00_ranks_and_collectives"
    assert doubts_of(recorded(lab), lab, tmp_path) == {}


def test_classmates_with_one_table_are_both_named():
    lab = "e03_zero"
    ada, eve = measured_anew(lab), measured_anew(lab)
    bob = {name: list(reversed(rows)) for name, rows in ada.items()}
    prints = {n: prints_of(t, lab) for n, t in {"ada": ada, "bob": bob, "eve": eve}.items()}
    assert copies(prints) == {"ada": {"steps": ["bob"]}, "bob": {"steps": ["ada"]}, "eve": {}}


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (lambda size: size / 1e9, "exact multiples of one"),
        (lambda size: 1.2345678e-3, "are equal"),
        (lambda size: 1.2345678e-4 + size / 3.1e9, "exactly on a line over bytes"),
        (lambda size: float(f"{1e-4 + size / 3.1e9:.2g}"), "3 digits or fewer"),
        (lambda size: 0, "nothing but zeros"),
        (lambda size: 0.001, "3 digits or fewer"),
    ],
)
def test_numbers_that_no_clock_gives(seconds: Callable[[int], float], words):
    table = [{"bytes": size, "seconds": seconds(size)} for size in SIZES]
    (found,) = impossible(table, ["seconds"])
    assert found.startswith("seconds: ") and words in found


@pytest.mark.parametrize(
    "table",
    [
        [],
        [{}],
        [{"seconds": "fast"}, {"seconds": None}, {"seconds": True}],
        [{"seconds": float("nan")}, {"seconds": float("inf")}, {"seconds": 10**400}],
        [{"seconds": [1]}, {"bytes": {}, "seconds": 0.123456789}],
    ],
)
def test_what_is_no_number_is_left_to_the_checks(table):
    assert impossible(table, ["seconds"]) == []
    doubts_of({"sweep": table}, "e00_ranks_and_collectives", SOLUTIONS)
    prints_of({"sweep": table}, "e00_ranks_and_collectives")


def test_invented_tables_of_any_size_are_judged_at_once():
    table = [{f"c{n}_{k}": k for k in range(30)} | {"seconds": n**0.5} for n in range(10_000)]
    assert impossible(table, ["seconds"]) == []


@pytest.mark.parametrize("lab", LABS)
def test_tables_count_only_with_the_exercises_that_they_rest_on(lab):
    """The solution's tables and answers, and no exercise: no point, and nothing is run."""
    copied, checks = read_submission(SOLUTIONS / f"{lab}.ipynb"), load_lab(lab)
    with Sandbox(checks.hidden) as sandbox:
        assert grade_submission(replace(copied, cells=()), checks, sandbox).score == 0
        assert sandbox.process is None


@pytest.fixture(scope="module")
def report() -> Iterator[Report]:
    """Of a notebook with the solution's tables, and the exercise that they rest on."""
    lab = load_lab("e00_ranks_and_collectives")
    copied = read_submission(SOLUTIONS / f"{lab.name}.ipynb")
    cells = tuple(c for c in copied.cells if not c.whole or "def ring_all_reduce(" in c.source)
    with Sandbox(lab.hidden, PATIENT) as sandbox:
        yield grade_submission(replace(copied, cells=cells), lab, sandbox)


def test_points_are_withheld_with_those_of_the_answers_read_off(report):
    before, after = ({r.exercise: r for r in rep.checks} for rep in (report, report.withheld()))
    assert set(report.doubts) == {"sweep", "prediction", "ring_or_doubling"}
    for name in ("sweep", "prediction", "ring_or_doubling", "half_size", "crossover"):
        assert before[name].points > 0 and after[name].points == 0
        assert after[name].status == "withheld" and "those recorded in" in after[name].message
    assert after["bytes_per_rank"] == before["bytes_per_rank"], "it is read off no table"


def test_without_doubt_nothing_is_withheld():
    checks = (CheckResult("sweep", "a", 1.0, 1.0, "passed"),)
    plain = Report("e00", checks, None, {"other": "words"}, {"sweep": ["sweep"]})
    assert plain.withheld() == plain


def test_an_executed_solution_that_is_handed_in_earns_nothing(tmp_path):
    lab = load_lab("e02_data_parallel")
    ours, theirs = SOLUTIONS / f"{lab.name}.ipynb", tmp_path / f"{lab.name}.ipynb"
    exercises = [item.name for item in lab.items if item.kind == "exercise"]
    text = ours.read_text(encoding="utf-8")
    theirs.write_text(text.replace("import torch", "import torch  # mine"), encoding="utf-8")
    copy = read_submission(theirs)
    assert is_copied(copy, exercises, SOLUTIONS)
    assert not is_copied(read_submission(ours), exercises, SOLUTIONS)
    assert not is_copied(copy, exercises[:2], SOLUTIONS), "two may be alike by chance"
    own = Cell("own", f"def {exercises[0]}(*args):\n    return args", True)
    assert not is_copied(replace(copy, cells=(*copy.cells, own)), exercises, SOLUTIONS)

    checks = tuple(CheckResult(name, "a", 5.0, 5.0, "passed") for name in exercises)
    sources = {name: [COPIED] for name in exercises}
    report = Report(lab.name, checks, None, {COPIED: "words", "sweep": "words"}, sources)
    assert report.withheld([COPIED]).score == 0 and report.withheld(["sweep"]) == report
    row = graded(Entry("ada", lab.name, theirs), report, "")
    (done,) = finished([row])
    assert done.score == "0" and "withheld: 20 points" in done.doubts


def test_the_summary_ends_with_each_students_points_by_lab():
    def row(student: str, lab: str, points: float) -> Grade:
        check = CheckResult("send", "a", points, 10.0, "passed")
        return graded(Entry(student, lab, Path("x.ipynb")), Report(lab, (check,)), "")

    rows = finished([row("ada", "e00_x", 7.5), row("ada", "e01_y", 4.0), row("bob", "e01_y", 9.0)])
    console = Console(width=100, file=io.StringIO())
    console.print(summary(rows))
    lines = [line.split() for line in console.file.getvalue().splitlines()]
    assert ["student", "e00", "e01", "total"] in lines
    assert ["ada", "7.5", "4", "11.5"] in lines and ["bob", "9", "9"] in lines
