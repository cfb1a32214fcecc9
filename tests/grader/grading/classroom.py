"""Grades a folder of submissions in parallel processes, into a CSV with one row per student and
lab.

The CSV is rewritten atomically after each submission, so an interrupted run loses at most those in
progress; a row whose file and checks have not changed is kept and not graded again. Each submission
has its own process, whose fate affects only its own row.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minitrain.errors import InputError
from minitrain.lab.grading.collect import Entry, checks_folder, find_class, find_lab, lab_names
from minitrain.lab.grading.course import load_lab
from minitrain.lab.grading.grade import grade_submission
from minitrain.lab.grading.rows import Grade, as_csv, failed, finished, graded, one_line, read_rows
from minitrain.lab.grading.running import drawn_from
from minitrain.lab.grading.submission import handed_in, read_submission
from minitrain.lab.sandbox import bubblewrap
from minitrain.lab.sandbox.limits import PATIENT
from minitrain.lab.sandbox.sandbox import Sandbox
from minitrain.paths import write_atomically

SECONDS = 900.0  # for one submission, whose exercises and checks have their own limits
STUDENT_SECONDS = 1800.0  # for one student's files, in one call of the command
LATER = (
    f"not graded yet: the other files of this student took more than {STUDENT_SECONDS / 60:g} "
    "minutes; the same command again goes on with this one"
)
MEMORY_BYTES = 6 * 2**30  # of the process that reads and judges its results


def grade_folder(
    folder: Path,
    csv_path: Path,
    workers: int,
    root: Path | None = None,
    withhold: bool = False,
    draw: int | None = None,
) -> list[Grade]:
    """Grades new or changed submissions, writes the CSV after each, returns all rows in order.

    withhold: withholds the points of doubtful tables (`doubts.py`); draw: the seed of the checks'
    inputs for every submission (None: each check draws its own).
    """
    entries = find_class(folder, root)
    done = {(row.file, row.graded_from): row for row in read_rows(csv_path) if row.graded_from}
    marks = {entry.path: _mark(entry, root) for entry in entries}
    kept = {path: done.get((one_line(str(path)), mark)) for path, mark in marks.items()}
    rows = {path: row for path, row in kept.items() if row is not None}

    def written() -> list[Grade]:
        made = finished([rows[e.path] for e in entries if e.path in rows], withhold)
        write_atomically(csv_path, as_csv(made))
        return made

    todo = [e for e in entries if e.path not in rows]
    for row, entry in _graded(todo, marks, workers, (root, draw)):
        rows[entry.path] = row
        written()
    return written()


def _graded(
    todo: list[Entry], marks: dict[Path, str], workers: int, how: tuple[Path | None, int | None]
) -> Iterator[tuple[Grade, Entry]]:
    """Yields rows as they finish, with a progress bar."""
    context = multiprocessing.get_context("forkserver")  # this process may have run torch
    context.set_forkserver_preload([__name__])
    living: dict[Any, Entry] = {}
    spent: dict[str, float] = defaultdict(float)
    with ThreadPoolExecutor(max(1, min(workers, len(todo)))) as pool:
        futures = {
            pool.submit(_in_turn, spent, context, living, entry, marks[entry.path], *how): entry
            for entry in todo
        }
        try:
            for future in _with_bar(futures, living):
                yield future.result(), futures[future]
        except BaseException:  # an interrupt, above all
            pool.shutdown(wait=False, cancel_futures=True)
            while any(future.running() for future in futures):
                for worker in list(living):
                    worker.kill()  # its sandbox dies with it
                time.sleep(0.02)
            raise


def _with_bar(futures: dict[Future, Entry], living: dict[Any, Entry]) -> Iterator[Future]:
    """Yields each as it finishes, with a progress bar that names those running."""
    glance = 1.0 if sys.stderr.isatty() else None  # to a file, one line per finished one
    pending = set(futures)
    with tqdm(total=len(futures), desc="grading", unit="file") as bar:
        while pending:
            done, pending = wait(pending, glance, FIRST_COMPLETED)
            bar.update(len(done))
            names = (
                f"{one_line(e.student)} {e.lab.partition('_')[0]}" for e in list(living.values())
            )
            bar.set_postfix_str(", ".join(names)[:60])
            yield from done


def _in_turn(
    spent: dict[str, float], context: Any, living: dict[Any, Entry], entry: Entry, *how: Any
) -> Grade:
    """Grades a submission unless its student's time is used up. `spent`: seconds by student."""
    if spent[entry.student] > STUDENT_SECONDS:
        return failed(entry, LATER, "")
    began = time.monotonic()
    row = _alone(context, living, entry, *how)
    spent[entry.student] += time.monotonic() - began
    return row


def _alone(
    context: Any,
    living: dict[Any, Entry],
    entry: Entry,
    mark: str,
    root: Path | None,
    draw: int | None = None,
) -> Grade:
    """Grades one submission in its own process."""
    ours, theirs = context.Pipe(duplex=False)
    worker = context.Process(target=_work, args=(theirs, entry, mark, root, draw))
    worker.start()
    living[worker] = entry
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
        living.pop(worker)
        ours.close()
    return failed(entry, reason, "")


def _work(answer: Connection, entry: Entry, mark: str, root: Path | None, draw: int | None) -> None:
    """Runs in that process, which leaves Ctrl-C to its parent."""
    import resource  # not on Windows, where nothing is graded

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, hard))
    try:
        with drawn_from(draw):
            row = grade_entry(entry, mark, root)
    except Exception as error:
        row = failed(entry, f"the grader failed: {type(error).__name__}: {error}", "")
    answer.send(row)


def grade_entry(entry: Entry, mark: str, root: Path | None = None) -> Grade:
    """Grades one submission in a worker process; any error becomes its row."""
    if entry.refused:
        return failed(entry, entry.refused, "")
    try:
        submission = read_submission(entry.path)
        lab = load_lab(find_lab(submission, root), root)
    except InputError as error:
        return failed(entry, str(error), mark)
    with Sandbox(lab.hidden, PATIENT) as sandbox:  # starts with the first run
        return graded(entry, grade_submission(submission, lab, sandbox), mark)


def _mark(entry: Entry, root: Path | None) -> str:
    """A digest of the row's inputs: the submission, its lab's checks, and isolation; "" if the file
    is unreadable."""
    if entry.refused:
        return ""
    try:
        digest = hashlib.sha256(handed_in(entry.path))
    except InputError:
        return ""
    others = {*lab_names(root)} - {entry.lab} if entry.lab else set()
    for checks in sorted([*checks_folder(root).glob("test_*.py"), *probes_of(root)]):
        if checks.stem.removeprefix("test_") not in others:
            digest.update(checks.read_bytes())
    digest.update(f"{_is_isolated()}".encode())
    return digest.hexdigest()[:16]


def probes_of(root: Path | None) -> Iterator[Path]:
    """The probes of a lab's checks: one file per lab, and shared ones."""
    return (checks_folder(root) / "probes").glob("*.py")


@cache
def _is_isolated() -> bool:
    return bubblewrap.find() is not None
