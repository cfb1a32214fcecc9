"""`python -m minitrain grade`: the checks of `lab.grade`, for a notebook or for a whole class."""

from __future__ import annotations

import os
import secrets
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minitrain.apps.kinds import NEW_FILE, Kind, full_name, named, one_of, whole
from minitrain.apps.options import Argument, Flag, Option
from minitrain.errors import InputError
from minitrain.paths import course_root, write_atomically
from minitrain.words import plural

if TYPE_CHECKING:
    from minitrain.lab.grading.results import Report
    from minitrain.lab.grading.submission import Submission


def read_submission_path(text: str) -> Path:
    """An existing file or folder, or a lab's own notebook by name: e02."""
    path = named(text)
    if path.exists():
        return path
    labs = {p.stem: p for p in (course_root() / "labs").glob("*.ipynb")}
    if full_name(text, labs) in labs:
        return labs[full_name(text, labs)]
    beside = {str(p) for p in path.parent.glob("*.ipynb")} if path.parent.is_dir() else set()
    near = get_close_matches(text, sorted({*labs, *beside}), n=1, cutoff=0.6)
    advice = f"did you mean {near[0]}?" if near else "give a notebook, a .py file or a folder"
    raise InputError(f"{text} is not there: {advice}")


def known_labs() -> list[str]:
    from minitrain.lab.grading.collect import lab_names

    return lab_names()


def read_lab(text: str) -> str:
    return KNOWN_LAB.read(full_name(text, known_labs()))


KNOWN_LAB = one_of("lab", known_labs)
LAB = Kind("LAB", "the name of a lab", read_lab)
SUBMISSION = Kind("PATH", "a notebook, a .py file or a folder", read_submission_path)


def grade(
    submissions: Annotated[
        list[Path],
        Argument(SUBMISSION, "Notebooks, .py files, names of labs, or folders.", many=True),
    ],
    as_json: Annotated[bool, Flag("Print JSON.", names=("--json",))] = False,
    junit: Annotated[Path | None, Option(NEW_FILE, "Write JUnit's XML to this file.")] = None,
    gradescope: Annotated[
        Path | None, Option(NEW_FILE, "Write Gradescope's results.json to this file.")
    ] = None,
    csv: Annotated[
        Path | None, Option(NEW_FILE, "Grade a folder in parallel; a row a student and lab.")
    ] = None,
    lab: Annotated[str | None, Option(LAB, "Grade this lab alone and skip others.")] = None,
    jobs: Annotated[
        int | None,
        Option(whole(1, 1024), "Parallel processes for --csv.", "one a core that has 4 GB"),
    ] = None,
    draw: Annotated[
        int | None,
        Option(whole(0, 2**32), "Seed of the checks' inputs.", "a new one each time"),
    ] = None,
    withhold_doubtful: Annotated[
        bool,
        Flag(
            "Give no points for recorded tables that are copied or invented, nor for answers read "
            "off them; else they are only remarked upon."
        ),
    ] = False,
) -> None:
    """Grade submissions in the sandbox, as text or for other tools.

    minitrain grade e02
    minitrain grade submissions/ --csv grades.csv
    """
    from minitrain.lab.grading.doubts import COPIED

    draw = secrets.randbits(32) if draw is None else draw
    if csv is not None:
        if lab is not None:
            raise InputError(
                "--csv has a row for each lab: leave --lab out, and look at its column"
            )
        _class(submissions, csv, jobs or _jobs(), withhold_doubtful, draw)
        return
    found, refused = _read(_files(submissions), lab)
    if gradescope is not None and len({name for _, name in found}) < len(found):
        raise InputError("--gradescope adds up the labs of one student: give each lab once")
    held = None if withhold_doubtful else [COPIED]
    reports = [(work.path, _report(work, name, draw, held)) for work, name in found]
    _warn()
    _write(reports, as_json, junit, gradescope)
    if refused:
        raise InputError("\n".join(refused))


def _warn() -> None:
    """Warns of anything that makes the sandbox weaker here."""
    from minitrain.lab.sandbox import bubblewrap

    if bubblewrap.find() is None:
        print(f"warning: {bubblewrap.MISSING}", file=sys.stderr)
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        print(f"warning: {bubblewrap.ROOT}", file=sys.stderr)


def _files(paths: list[Path]) -> list[Path]:
    from minitrain.lab.grading.collect import find_submissions

    found: list[Path] = []
    for path in paths:
        found += [entry.path for entry in find_submissions(path)] if path.is_dir() else [path]
    return found


def _read(
    paths: list[Path], lab: str | None = None
) -> tuple[list[tuple[Submission, str]], list[str]]:
    """The submissions with their labs (only those of `lab` if given), and a sentence for each
    rejected file."""
    from minitrain.lab.grading.collect import find_lab
    from minitrain.lab.grading.submission import read_submission

    found, refused = [], []
    for path in paths:
        try:
            submission = read_submission(path)
            found.append((submission, find_lab(submission)))
        except InputError as error:
            refused.append(str(error))
    if lab is not None:
        found = [(submission, name) for submission, name in found if name == lab]
    if not found:
        raise InputError("\n".join(refused) or f"none of {len(paths)} files is of {lab}")
    return found, refused


def _report(submission: Submission, name: str, draw: int, held: list[str] | None) -> Report:
    """Without the points of what is in these doubts; None: in any."""
    from minitrain.lab.grading.course import load_lab
    from minitrain.lab.grading.grade import grade_submission
    from minitrain.lab.grading.running import drawn_from
    from minitrain.lab.sandbox.limits import PATIENT
    from minitrain.lab.sandbox.sandbox import Sandbox

    lab = load_lab(name)
    with Sandbox(lab.hidden, PATIENT) as sandbox, drawn_from(draw):  # starts with the first run
        return grade_submission(submission, lab, sandbox).withheld(held)


def _write(
    reports: list[tuple[Path, Report]],
    as_json: bool,
    junit: Path | None,
    gradescope: Path | None,
) -> None:
    from minitrain.lab.grading import reports as forms

    plain = [report for _, report in reports]
    if junit is not None:
        write_atomically(junit, forms.as_junit(plain))
    if gradescope is not None:
        write_atomically(gradescope, forms.as_gradescope(plain))
    if as_json:
        print(forms.as_json(plain))
        return
    for path, report in reports:
        forms.print_text(report, f"{report.lab}: {path}")


def _jobs() -> int:
    """One process per core, if memory allows 4 GiB for each."""
    import psutil

    memory = psutil.virtual_memory().total // (4 * 2**30)
    return max(1, min(os.cpu_count() or 1, memory))


def _class(paths: list[Path], csv: Path, jobs: int, withhold: bool, draw: int) -> None:
    if len(paths) != 1 or not paths[0].is_dir():
        raise InputError("--csv grades one folder of submissions: give that folder alone")

    from minitrain.lab.grading.classroom import grade_folder  # torch: seconds
    from minitrain.lab.grading.summary import print_summary

    rows = grade_folder(paths[0], csv, jobs, withhold=withhold, draw=draw)
    _warn()
    print_summary(rows)
    failed = [row for row in rows if row.error]
    print(f"{csv}: {len(rows)} rows, {len(failed)} of them with an error")
    print(f"  --draw {draw} grades on the same inputs again")
    for row in failed:
        print(f"  {row.student}: {row.error}")
    doubtful = sum(bool(row.doubts) for row in rows)
    if doubtful:
        print(f"  {plural(doubtful, 'row')} with something to ask about: see the column doubts")
