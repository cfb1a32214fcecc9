"""Updates the course with git, keeping every cell of the learner's work.

    mine     the notebook as the learner has it      base   as it was handed out
    theirs   as the new course has it                merged = theirs, with what mine added to base

An exercise's cell is matched by its id, or by the function or class that it defines, since an id
changes with the cell's original text. Where both changed a cell, the learner's is kept below the
new one, so that a run from top to bottom uses the learner's.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from minitrain.errors import InputError

DEFINES = re.compile(r"^(?:def|class) (\w+)", re.MULTILINE)


@dataclass(frozen=True)
class Merged:
    """A notebook with the learner's cells: the number kept, and those changed on both sides."""

    notebook: NotebookNode
    kept: int
    both: list[str]  # the first line of each


@dataclass(frozen=True)
class Update:
    """The changes of an update, by notebook; `copies` holds the learner's files."""

    before: str
    after: str
    merged: dict[Path, Merged]
    copies: Path | None


def update(root: Path) -> Update:
    """Brings the checkout at `root` to its upstream's newest commit.

    InputError where git refuses (no upstream, no network, local changes outside the notebooks that
    would be overwritten), or a notebook cannot be read; every file is then unchanged.
    """
    before = _git(root, "rev-parse", "--short", "HEAD").strip()
    changed = _git(root, "diff", "--name-only", "HEAD", "--", "labs/*.ipynb").splitlines()
    there = [name for name in changed if (root / name).is_file()]
    texts = {root / name: _git(root, "show", f"HEAD:{name}") for name in there}
    base = {path: nbformat.reads(text, as_version=4) for path, text in texts.items()}
    mine = {path: _read(path) for path in base}
    with _kept_aside(root, list(base)) as copies:
        if base:
            _git(root, "checkout", "HEAD", "--", *map(str, base))
        _git(root, "pull", "--ff-only", "--quiet")
        merged = {}
        for path in base:
            if not path.is_file():  # removed from the new course: the learner's stays
                shutil.copy2(copies / path.name, path)
                continue
            merged[path] = merge(base[path], _read(path), mine[path])
            nbformat.write(merged[path].notebook, path)
    after = _git(root, "rev-parse", "--short", "HEAD").strip()
    return Update(before, after, merged, copies if base else None)


def new_commits(root: Path) -> int:
    """The number of commits by which the upstream is ahead; changes nothing."""
    _git(root, "fetch", "--quiet")
    return int(_git(root, "rev-list", "--count", "HEAD..@{upstream}"))


def merge(base: NotebookNode, theirs: NotebookNode, mine: NotebookNode) -> Merged:
    """`theirs` with each cell that the learner changed or added, and outputs of untouched cells."""
    handed_out = {cell.id: cell for cell in base.cells}
    cells = deepcopy(theirs.cells)
    kept, both, previous = 0, [], -1
    for cell in mine.cells:
        old = handed_out.get(cell.id)
        place = _place(cells, cell, old)
        is_same = old is not None and old.source == cell.source
        if is_same and place is None:  # removed from the new course
            continue
        if is_same:
            if cells[place].source == cell.source:
                cells[place] = _instead(cells[place], cell)
        elif not cell.source.strip() and old is None:  # an empty cell at the end
            continue
        elif place is None:
            place = previous + 1
            cells.insert(place, deepcopy(cell))
            kept += 1
        else:
            new, kept = cells[place], kept + 1
            cells[place] = _instead(new, cell)
            if new.source not in (old.source if old else "", cell.source):
                both.append(cell.source.strip().partition("\n")[0])
                cells.insert(place, _shown(new))
                place += 1
        previous = place
    return Merged(NotebookNode({**deepcopy(theirs), "cells": cells}), kept, both)


def _place(cells: list[NotebookNode], cell: NotebookNode, old: NotebookNode | None) -> int | None:
    """This cell's place in the new notebook, by its id, else by the name that its original text
    defined."""
    names = set(DEFINES.findall(old.source)) if old and old.cell_type == "code" else set()
    by_id = (i for i, other in enumerate(cells) if other.id == cell.id)
    by_name = (i for i, other in enumerate(cells) if names & set(DEFINES.findall(other.source)))
    return next(by_id, next(by_name, None))


def _instead(new: NotebookNode, cell: NotebookNode) -> NotebookNode:
    """The learner's cell, marked as the new course marks this one."""
    return NotebookNode({**deepcopy(cell), "id": new.id, "metadata": new.metadata})


def _shown(new: NotebookNode) -> NotebookNode:
    """The new text of a cell, above the learner's own; ungraded."""
    cell = deepcopy(new)
    cell.id, cell.metadata = f"{new.id}-new", NotebookNode()
    return cell


@contextmanager
def _kept_aside(root: Path, paths: list[Path]) -> Iterator[Path]:
    """A folder with copies of these files, restored if anything fails."""
    copies = root / "labs" / ".before_update" / datetime.now().strftime("%Y-%m-%d_%H-%M-%S.%f")
    if paths:
        copies.mkdir(parents=True)
    for path in paths:
        shutil.copy2(path, copies / path.name)
    try:
        yield copies
    except BaseException:
        for path in paths:
            shutil.copy2(copies / path.name, path)
        raise


def _read(path: Path) -> NotebookNode:
    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat may raise anything on a damaged file
        words = f"{path} is not a notebook ({type(error).__name__}): save it again in JupyterLab"
        raise InputError(f"{words}; nothing was changed") from error


def _git(root: Path, *arguments: str) -> str:
    try:
        ran = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        raise InputError("git is not installed: install it, or fetch the course anew") from None
    if ran.returncode:
        said = ran.stderr.strip().splitlines()
        raise InputError(f"git {arguments[0]} failed ({' '.join(said[:4])}): nothing was changed")
    return ran.stdout
