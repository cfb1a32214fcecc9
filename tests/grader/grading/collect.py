"""Finds submissions: a file's student and lab, from the names of files and folders, else from the
notebook itself.

Imports no torch, so that a wrong path is reported at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from minitrain.errors import InputError, unknown_name
from minitrain.lab.grading.submission import Submission
from minitrain.paths import course_root

SKIPPED = {".ipynb_checkpoints", "__pycache__", "feedback"}
MOST_FILES = 100  # per student: all labs, several times each
DEEPEST = 10  # nested folders; no layout has more, and thousands would overflow the stack


@dataclass(frozen=True)
class Entry:
    """A file that belongs to a student and a lab; `refused` says why it is not read."""

    student: str
    lab: str
    path: Path
    refused: str = ""


def checks_folder(root: Path | None = None) -> Path:
    return (root or course_root()) / "tests" / "labs"


def lab_names(root: Path | None = None) -> list[str]:
    """All labs that have checks, in the course's order."""
    files = checks_folder(root).glob("test_*.py")
    return sorted(path.stem.removeprefix("test_") for path in files)


def find_lab(submission: Submission, root: Path | None = None) -> str:
    """The lab of a file, by its name, else by its contents; InputError where neither identifies
    it."""
    named = _lab_in_name(submission.path.stem, root)
    if named:
        return named
    if submission.lab is None:
        raise InputError(
            f"{submission.path} does not say which lab it is: name it e02_data_parallel.ipynb, "
            f"or keep its setup cell with Lab(…); known are {', '.join(lab_names(root))}"
        )
    if submission.lab not in lab_names(root):
        raise unknown_name("lab", submission.lab, lab_names(root))
    return submission.lab


def _lab_in_name(stem: str, root: Path | None) -> str | None:
    found = [name for name in lab_names(root) if name in stem]
    return max(found, key=len, default=None)


def find_submissions(folder: Path, root: Path | None = None) -> list[Entry]:
    """`ada/e02.ipynb`, `ada/e02/e02.ipynb`, `ada_e02.ipynb`; a .py counts for students without a
    notebook."""
    paths = [p for p in _files(folder) if p.suffix in (".ipynb", ".py")]
    paths = [p for p in sorted(paths) if not SKIPPED & set(p.parts) and p.stem != "index"]
    entries = [_entry(path, folder, root) for path in paths if path.suffix == ".ipynb"]
    with_notebook = {entry.student for entry in entries}
    scripts = (_entry(path, folder, root) for path in paths if path.suffix == ".py")
    entries += [one for one in scripts if one.lab and one.student not in with_notebook]
    entries.sort(key=lambda entry: entry.path)
    if not entries:
        raise InputError(
            f"{folder} holds no submissions: it needs notebooks, such as "
            "student/e02_data_parallel.ipynb or student_e02_data_parallel.ipynb"
        )
    return entries


def _files(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """All files in it and its folders; links are not followed, unreadable folders are skipped."""
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        yield folder / entry.name
        if depth and entry.is_dir(follow_symlinks=False):
            yield from _files(folder / entry.name, depth - 1)


def find_class(folder: Path, root: Path | None = None) -> list[Entry]:
    """The submissions, and an entry for each student's folder without one."""
    entries = find_submissions(folder, root)
    files = {entry.student for entry in entries}
    found = []
    for student, those in groupby(sorted(entries, key=_student), _student):
        few = list(those)
        if len(few) > MOST_FILES and student:
            words = f"there are {len(few)} files of {student}, more than {MOST_FILES}"
            few = [Entry(student, "", folder / student, f"{words}: hand in each lab once")]
        found += few
    for path in folder.iterdir():
        if _is_folder(path) and path.name not in files and _may_be_a_students(path.name):
            words = "is a link" if path.is_symlink() else "holds no notebook"
            found.append(Entry(path.name, "", path, f"{path} {words}: hand in the notebook itself"))
    return sorted(found, key=lambda entry: entry.path)


def _student(entry: Entry) -> str:
    return entry.student


def _is_folder(path: Path) -> bool:
    """True also for a link whose target is inaccessible."""
    try:
        return path.is_dir()
    except OSError:
        return path.is_symlink()


def _may_be_a_students(name: str) -> bool:
    return name not in SKIPPED and not name.startswith(".")


def _entry(path: Path, folder: Path, root: Path | None) -> Entry:
    parts = path.relative_to(folder).parts
    lab = _lab_in_name(path.stem, root) or ""
    if len(parts) > 1:
        return Entry(parts[0], lab, path)
    before, _, after = path.stem.partition(lab) if lab else (path.stem, "", "")
    return Entry(before.strip("_- ") or after.strip("_- "), lab, path)
