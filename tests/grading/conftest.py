"""A course of one tiny lab, and sandboxes that are started once for all the tests here."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from inspect import getsource, isfunction
from pathlib import Path
from typing import Any

import nbformat
import pytest

from minitrain.lab.grading.attempt import attempt_of
from minitrain.lab.grading.checks import checks_of
from minitrain.lab.grading.course import LabChecks, load_lab, pickled_reference
from minitrain.lab.grading.grade import grade_submission
from minitrain.lab.grading.results import CheckResult, Report
from minitrain.lab.grading.running import run_check
from minitrain.lab.grading.submission import RECORDED, Submission, read_submission
from minitrain.lab.sandbox import bubblewrap
from minitrain.lab.sandbox.limits import PATIENT, Limits
from minitrain.lab.sandbox.loader import Cell
from minitrain.lab.sandbox.sandbox import Sandbox

from .bank import Specimen
from .mutations import Mutant

Grade = Callable[[Specimen | Mutant, str], Iterator[CheckResult]]
FIXTURES = Path(__file__).parent / "fixtures"
QUICK = Limits(
    seconds=3.0,
    after_hang=1.0,
    exercise_seconds=30.0,
    memory_bytes=2**30,
    processes=48,
    output_bytes=2**20,
    reply_bytes=2**26,
)
MUTANTS = Limits(seconds=8.0, after_hang=2.0, exercise_seconds=60.0)  # many of them hang


@pytest.fixture(scope="session")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of a course with the lab t00_tiny."""
    root = tmp_path_factory.mktemp("course")
    (root / "tests" / "labs").mkdir(parents=True)
    (root / "labs").mkdir()
    shutil.copy(FIXTURES / "tiny_lab.py", root / "tests" / "labs" / "test_t00_tiny.py")
    return root


@pytest.fixture(scope="session")
def tiny(course: Path) -> LabChecks:
    return load_lab("t00_tiny", course)


@pytest.fixture(scope="session")
def sandbox(tiny: LabChecks) -> Iterator[Sandbox]:
    """The strongest that this machine has."""
    with Sandbox(tiny.hidden, QUICK) as made:
        made.start()
        yield made


@pytest.fixture(scope="session")
def open_sandbox(tiny: LabChecks) -> Iterator[Sandbox]:
    """Without bubblewrap, as on macOS: limits and the audit hook only."""
    with Sandbox(tiny.hidden, QUICK, isolate=False) as made:
        made.start()
        yield made


@pytest.fixture(scope="session")
def isolated(sandbox: Sandbox) -> Sandbox:
    if bubblewrap.find() is None:
        pytest.skip("bubblewrap is not installed here, or the kernel forbids it")
    return sandbox


@pytest.fixture(scope="session")
def honest() -> Submission:
    return read_submission(FIXTURES / "honest.py")


def submitted(*sources: str) -> Submission:
    """A submission from the text of its exercise cells."""
    cells = [Cell(f"cell {number}", text, True) for number, text in enumerate(sources, 1)]
    return Submission(Path("cells.py"), tuple(cells))


@pytest.fixture
def grade(tiny: LabChecks, sandbox: Sandbox, honest: Submission):
    """grade("def f(x): …") -> the report of an honest solution with these cells after it."""

    def run(*sources: str) -> Report:
        cells = (*honest.cells, *submitted(*sources).cells)
        return grade_submission(replace(honest, cells=cells), tiny, sandbox)

    return run


@pytest.fixture
def notebook(tmp_path: Path):
    """notebook("ada_t00_tiny.ipynb", [(source, tags, records)]) -> the path of a notebook."""

    def write(name: str, cells: list[tuple[str, list[str], list[dict]]]) -> Path:
        made = nbformat.v4.new_notebook()
        for source, tags, records in cells:
            outputs = [nbformat.v4.new_output("display_data", {RECORDED: r}) for r in records]
            cell = nbformat.v4.new_code_cell(source, metadata={"tags": tags}, outputs=outputs)
            made.cells.append(cell)
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(made, path)
        return path

    return write


@pytest.fixture
def complete(notebook):
    """complete(name) -> a notebook of the tiny lab with everything done."""
    functions = (FIXTURES / "honest.py").read_text()
    table = [{"ranks": 2, "bytes": 10}, {"ranks": 4, "bytes": 30}]
    records = [{"kind": "experiment", "name": "scaling", "value": table}]
    answers = [{"kind": "answer", "name": "most", "value": 4}]

    def write(name: str = "t00_tiny.ipynb") -> Path:
        setup = ('from minitrain.lab import Lab\n\nlab = Lab("t00_tiny")', ["setup"], [])
        body = [(functions, ["exercise"], []), ("chunk_sizes = lab.grade(chunk_sizes)", [], [])]
        data = [
            ('lab.experiment("scaling", t)', [], records),
            ('lab.answer("most", 4)', [], answers),
        ]
        return notebook(name, [setup, *body, *data])

    return write


@pytest.fixture(scope="module")
def graded(request: pytest.FixtureRequest) -> Iterator[Grade]:
    """graded(specimen, exercise) -> its checks in turn; one sandbox a lab, the one in use.

    Those in whose source the specimen's words stand come first: then most need no other. What they
    draw is decided by `--draws`.
    """
    limits = PATIENT if request.module.__name__.endswith("banks") else MUTANTS
    labs: dict[str, LabChecks] = {}
    sandboxes: dict[str, Sandbox] = {}

    def grade(specimen: Specimen | Mutant, exercise: str) -> Iterator[CheckResult]:
        name = specimen.lab
        if name not in sandboxes:
            for old in list(sandboxes):
                sandboxes.pop(old).close()
            labs[name] = load_lab(name)
            sandboxes[name] = Sandbox(labs[name].hidden, limits)
        exercises = [item for item in labs[name].items if item.kind == "exercise"]
        ours = {e.name: pickled_reference(e) for e in exercises if e.name != exercise}
        item = labs[name].find("exercise", exercise)
        attempt = attempt_of(item, specimen.submission(), ours, sandboxes[name])
        checks = sorted(checks_of(item), key=lambda c: len(specimen.missing(words_of(c.function))))
        return (run_check(item, check, {"submission": attempt}) for check in checks)

    seed = request.config.getoption("--draws")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("minitrain.lab.grading.running.secrets.randbits", lambda bits: seed)
        yield grade
    for sandbox in sandboxes.values():
        sandbox.close()


@cache
def words_of(check: Any) -> str:
    """The source of a check and of the functions beside it that it calls, texts joined."""
    called = (check.__globals__.get(name) for name in check.__code__.co_names)
    beside = [f for f in called if isfunction(f) and f.__module__ == check.__module__]
    return re.sub(r'"\s*f?"', "", "".join(map(getsource, [check, *beside])))
