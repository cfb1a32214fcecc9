"""Grades a folder of submissions in parallel processes, into a CSV with one row a student and lab.

The CSV is rewritten, at once, after each submission, so an interrupted run loses at most the ones
under way; a row whose file and checks have not changed since is kept and not graded again.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pandas
from tqdm import tqdm

from minitrain.errors import InputError
from minitrain.lab.grading.collect import Entry, checks_folder, find_lab, find_submissions
from minitrain.lab.grading.course import load_lab
from minitrain.lab.grading.grade import Report, grade_submission, warm
from minitrain.lab.grading.reports import printable
from minitrain.lab.grading.submission import read_submission
from minitrain.lab.sandbox.limits import PATIENT
from minitrain.paths import write_atomically
from minitrain.words import points_text


@dataclass(frozen=True)
class Grade:
    """A line of the CSV; `error` says why there is no score, `remarks` what failed."""

    student: str
    lab: str
    score: str
    max_score: str
    error: str
    remarks: str
    file: str
    graded_from: str  # of the file and of the checks: the row is kept while both are as they were


COLUMNS = [field.name for field in fields(Grade)]


def grade_folder(
    folder: Path, csv_path: Path, workers: int, root: Path | None = None
) -> list[Grade]:
    """Grades what is new or changed, writes the CSV after each, returns all its rows in order."""
    entries = find_submissions(folder, root)
    done = {row.file: row for row in read_rows(csv_path)}
    marks = {entry.path: _mark(entry, root) for entry in entries}
    kept = {(row.file, row.graded_from) for row in done.values()}
    rows = {path: done[str(path)] for path in marks if (str(path), marks[path]) in kept}
    todo = [entry for entry in entries if entry.path not in rows]
    for row, entry in _graded(todo, marks, workers, root):
        rows[entry.path] = row
        write_atomically(csv_path, as_csv(rows[e.path] for e in entries if e.path in rows))
    if not todo:
        write_atomically(csv_path, as_csv(rows[e.path] for e in entries))
    return [rows[entry.path] for entry in entries]


def _graded(
    todo: list[Entry], marks: dict[Path, str], workers: int, root: Path | None
) -> Iterator[tuple[Grade, Entry]]:
    """In the order in which they are finished, with a progress bar."""
    count = max(1, min(workers, len(todo)))
    context = multiprocessing.get_context("spawn")  # this process may have run torch
    with ProcessPoolExecutor(count, mp_context=context, initializer=_until_told) as pool:
        futures: dict[Future[Grade], Entry] = {
            pool.submit(grade_entry, entry, marks[entry.path], root): entry for entry in todo
        }
        try:
            for future in tqdm(
                as_completed(futures), total=len(futures), desc="grading", unit="file"
            ):
                entry, failed = futures[future], future.exception()
                row = future.result() if failed is None else _failed(entry, str(failed), "")
                yield row, entry
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                while worker.is_alive():  # each time it leaves what it is grading
                    worker.terminate()
                    worker.join(1)
            raise


def _until_told() -> None:
    """A worker leaves Ctrl-C to its parent, and at its word ends its sandbox on the way out."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


def grade_entry(entry: Entry, mark: str, root: Path | None = None) -> Grade:
    """One submission, in a process of the pool; whatever is wrong with it becomes its row."""
    try:
        submission = read_submission(entry.path)
        lab = load_lab(find_lab(submission, root), root)
    except InputError as error:
        return _failed(entry, str(error), mark)
    with warm(lab, PATIENT) as sandbox:
        return _row(entry, grade_submission(submission, lab, sandbox), mark)


def _row(entry: Entry, report: Report, mark: str) -> Grade:
    remarks = [
        f"{result.exercise}: {result.message.splitlines()[0]}"
        for result in report.checks
        if result.status in ("failed", "error") and result.message
    ]
    todo = sorted({r.exercise for r in report.checks if r.status == "not attempted"})
    if todo:
        remarks.append(f"not attempted: {', '.join(todo)}")
    scores = (points_text(report.score), points_text(report.max_score))
    text = printable(" | ".join(remarks)).replace("\n", " ")
    return Grade(entry.student, report.lab, *scores, "", text, str(entry.path), mark)


def _failed(entry: Entry, reason: str, mark: str) -> Grade:
    return Grade(entry.student, entry.lab, "0", "", printable(reason), "", str(entry.path), mark)


def _mark(entry: Entry, root: Path | None) -> str:
    """What the grade depends on: the submission, and the checks of its lab."""
    digest = hashlib.sha256(entry.path.read_bytes())
    for checks in sorted(checks_folder(root).glob("test_*.py")):
        if entry.lab in ("", checks.stem.removeprefix("test_")):
            digest.update(checks.read_bytes())
    return digest.hexdigest()[:16]


def read_rows(path: Path) -> list[Grade]:
    """The rows of an earlier run; InputError for a file that is no such CSV."""
    if not path.exists():
        return []
    try:
        table = pandas.read_csv(path, dtype=str, na_filter=False)
    except ValueError as error:  # of pandas, and of text that is not UTF-8
        raise InputError(f"{path} is there and is no CSV: give another name to --csv") from error
    if list(table) != COLUMNS:
        raise InputError(
            f"{path} is there and is not a table of grades: give another name to --csv"
        )
    return [Grade(**row) for row in table.to_dict("records")]


def as_csv(rows: Iterable[Grade]) -> str:
    """Values that a spreadsheet would run as formulas get an apostrophe before them."""
    lines = [{name: _harmless(value) for name, value in asdict(row).items()} for row in rows]
    return pandas.DataFrame(lines, columns=COLUMNS).to_csv(index=False, lineterminator="\n")


def _harmless(value: str) -> str:
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t") else value
