"""Grades a folder of submissions in parallel processes, into a CSV with one row a student and lab.

The CSV is rewritten, at once, after each submission, so an interrupted run loses at most the ones
under way; a row whose file and checks have not changed since is kept and not graded again. Each
submission has a process of its own: whatever becomes of that is its own row.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pandas
from tqdm import tqdm

from minitrain.errors import InputError
from minitrain.lab.grading.collect import Entry, checks_folder, find_lab, find_submissions
from minitrain.lab.grading.course import load_lab
from minitrain.lab.grading.grade import Report, grade_submission, warm
from minitrain.lab.grading.submission import handed_in, read_submission
from minitrain.lab.sandbox import bubblewrap
from minitrain.lab.sandbox.limits import PATIENT
from minitrain.paths import write_atomically
from minitrain.words import points_text, printable

SECONDS = 900.0  # for one submission, whose exercises and checks have limits of their own
MEMORY_BYTES = 6 * 2**30  # of the process that reads what it returns, and judges it


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
    files = Counter((entry.student, entry.lab) for entry in entries)
    done = {row.file: row for row in read_rows(csv_path)}
    marks = {e.path: _mark(e, files[e.student, e.lab], root) for e in entries}
    kept = {(row.file, row.graded_from) for row in done.values() if row.graded_from}
    rows = {path: done[_file(path)] for path in marks if (_file(path), marks[path]) in kept}
    todo = [entry for entry in entries if entry.path not in rows]
    for row, entry in _graded(todo, marks, workers, root):
        count = files[entry.student, entry.lab]
        if count > 1:
            words = f"one of {count} files of this student for one lab"
            row = replace(row, remarks=" | ".join(filter(None, [words, row.remarks])))
        rows[entry.path] = row
        write_atomically(csv_path, as_csv(rows[e.path] for e in entries if e.path in rows))
    if not todo:
        write_atomically(csv_path, as_csv(rows[e.path] for e in entries))
    return [rows[entry.path] for entry in entries]


def _file(path: Path) -> str:
    """The path as the CSV has it, which takes no name that is no text."""
    return printable(str(path))


def _graded(
    todo: list[Entry], marks: dict[Path, str], workers: int, root: Path | None
) -> Iterator[tuple[Grade, Entry]]:
    """In the order in which they are finished, with a progress bar."""
    context = multiprocessing.get_context("forkserver")  # this process may have run torch
    context.set_forkserver_preload([__name__])
    living: set[Any] = set()
    with ThreadPoolExecutor(max(1, min(workers, len(todo)))) as pool:
        futures = {
            pool.submit(_alone, context, living, entry, marks[entry.path], root): entry
            for entry in todo
        }
        try:
            finished = as_completed(futures)
            for future in tqdm(finished, total=len(futures), desc="grading", unit="file"):
                yield future.result(), futures[future]
        except BaseException:  # an interrupt, above all
            pool.shutdown(wait=False, cancel_futures=True)
            while any(future.running() for future in futures):
                for worker in list(living):
                    worker.kill()  # its sandbox dies with it
                time.sleep(0.02)
            raise


def _alone(context: Any, living: set[Any], entry: Entry, mark: str, root: Path | None) -> Grade:
    """One submission, in a process of its own."""
    ours, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(theirs, entry, mark, root))
    worker.start()
    living.add(worker)
    theirs.close()
    try:
        if ours.poll(SECONDS):
            return ours.recv()
        reason = f"it was not graded after {SECONDS / 60:g} minutes"
    except EOFError:
        worker.join()
        reason = f"the process that graded it ended with exit code {worker.exitcode}"
    finally:
        worker.kill()
        worker.join()
        living.discard(worker)
        ours.close()
    return _failed(entry, reason, "")


def _work(answer: Connection, entry: Entry, mark: str, root: Path | None) -> None:
    """In that process, which leaves Ctrl-C to its parent."""
    import resource  # not on Windows, where nothing is graded

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))
    try:
        row = grade_entry(entry, mark, root)
    except Exception as error:
        row = _failed(entry, f"the grader failed: {type(error).__name__}: {error}", "")
    answer.send(row)


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
    if report.warning:
        remarks.insert(0, "not isolated (no bubblewrap)")
    scores = (points_text(report.score), points_text(report.max_score))
    text = printable(" | ".join(remarks)).replace("\n", " ")
    return Grade(printable(entry.student), report.lab, *scores, "", text, _file(entry.path), mark)


def _failed(entry: Entry, reason: str, mark: str) -> Grade:
    student, file = printable(entry.student), _file(entry.path)
    return Grade(student, entry.lab, "0", "", printable(reason), "", file, mark)


def _mark(entry: Entry, files: int, root: Path | None) -> str:
    """What the row depends on: the submission, the checks of its lab, whether it is isolated, and
    the student's number of files for the lab; "" if the file is unreadable."""
    try:
        digest = hashlib.sha256(handed_in(entry.path))
    except InputError:
        return ""
    for checks in sorted(checks_folder(root).glob("test_*.py")):
        if entry.lab in ("", checks.stem.removeprefix("test_")):
            digest.update(checks.read_bytes())
    digest.update(f"{_is_isolated()} {files}".encode())
    return digest.hexdigest()[:16]


@cache
def _is_isolated() -> bool:
    return bubblewrap.find() is not None


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
