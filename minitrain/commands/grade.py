"""`python -m minitrain grade`: the checks of `lab.grade`, for a notebook or for a whole class."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from minitrain.lab.grading.grade import Report


def grade(
    submissions: Annotated[
        list[str], typer.Argument(help="notebooks, .py files, a lab's name, or a folder of them")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    junit: Annotated[Optional[Path], typer.Option(help="write JUnit's XML")] = None,  # noqa: UP045
    gradescope: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="write Gradescope's results.json"),
    ] = None,
    csv: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="grade a folder in parallel; a row a student and lab"),
    ] = None,
    jobs: Annotated[int, typer.Option(help="parallel processes for --csv")] = os.cpu_count() or 1,
) -> None:
    """Grade submissions in the sandbox: text, or --json, --junit, --gradescope, --csv."""
    from minitrain.lab.sandbox import bubblewrap

    paths = [_find(given) for given in submissions]
    if bubblewrap.find() is None:
        print(f"warning: {bubblewrap.MISSING}", file=sys.stderr)
    if csv is not None:
        _class(paths, csv, jobs)
        return
    reports = [(path, _report(path)) for path in _files(paths)]
    _write(reports, as_json, junit, gradescope)


def _find(given: str) -> Path:
    """The path as it was given, or a lab's own notebook by its name."""
    from minitrain.errors import InputError
    from minitrain.paths import course_root

    path = Path(given)
    if path.exists():
        return path
    labs = {p.stem: p for p in (course_root() / "labs").glob("*.ipynb")}
    if given in labs:
        return labs[given]
    beside = {str(p) for p in path.parent.glob("*.ipynb")} if path.parent.is_dir() else set()
    near = get_close_matches(given, sorted({*labs, *beside}), n=1, cutoff=0.6)
    advice = f"did you mean {near[0]}?" if near else "give a notebook, a .py file or a folder"
    raise InputError(f"{given} is not there: {advice}")


def _files(paths: list[Path]) -> list[Path]:
    from minitrain.lab.grading.collect import find_submissions

    found: list[Path] = []
    for path in paths:
        found += [entry.path for entry in find_submissions(path)] if path.is_dir() else [path]
    return found


def _report(path: Path) -> Report:
    from minitrain.lab.grading.collect import find_lab
    from minitrain.lab.grading.submission import read_submission

    submission = read_submission(path)
    name = find_lab(submission)

    from minitrain.lab.grading.course import load_lab
    from minitrain.lab.grading.grade import grade_submission, warm
    from minitrain.lab.sandbox.limits import PATIENT

    lab = load_lab(name)
    with warm(lab, PATIENT) as sandbox:
        return grade_submission(submission, lab, sandbox)


def _write(
    reports: list[tuple[Path, Report]],
    as_json: bool,
    junit: Path | None,
    gradescope: Path | None,
) -> None:
    from minitrain.lab.grading import reports as forms

    plain = [report for _, report in reports]
    if junit is not None:
        forms.write_atomically(junit, forms.as_junit(plain))
    if gradescope is not None:
        forms.write_atomically(gradescope, forms.as_gradescope(plain))
    if as_json:
        print(forms.as_json(plain))
        return
    for path, report in reports:
        forms.print_text(report, f"{report.lab}: {path}")


def _class(paths: list[Path], csv: Path, jobs: int) -> None:
    from minitrain.errors import InputError

    if len(paths) != 1 or not paths[0].is_dir():
        raise InputError("--csv grades one folder of submissions: give that folder alone")
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: give the number of parallel processes, from 1 up")

    from minitrain.lab.grading.classroom import grade_folder  # torch: seconds

    rows = grade_folder(paths[0], csv, jobs)
    failed = [row for row in rows if row.error]
    print(f"{csv}: {len(rows)} rows, {len(failed)} of them with an error")
    for row in failed:
        print(f"  {row.file}: {row.error}")
