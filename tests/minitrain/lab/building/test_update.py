"""`update` on a real clone: new cells arrive, a learner's stay, and a failure leaves every file."""

from __future__ import annotations

import subprocess
from pathlib import Path

import nbformat
import pytest

from minitrain.errors import InputError
from minitrain.lab.building.update import merge, update

SETUP, GRADE = "import torch", "ring = lab.grade(ring)"
STUB = "def ring(x):\n    raise NotImplementedError\n"
MINE = "def ring(x):\n    return x + 1\n"


def notebook(**cells: str) -> nbformat.NotebookNode:
    """Cells by id; of one that begins with # the text is Markdown."""
    kinds = {True: nbformat.v4.new_markdown_cell, False: nbformat.v4.new_code_cell}
    made = [kinds[text.startswith("#")](text, id=name) for name, text in cells.items()]
    return nbformat.v4.new_notebook(cells=made)


def sources(merged: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in merged.cells]


BASE = notebook(title="# Ring", setup=SETUP, ring=STUB, grade=GRADE)


def test_new_cells_come_and_the_learners_stay():
    mine = notebook(title="# Ring", setup=SETUP, ring=MINE, note="my_try = 1", grade=GRADE)
    mine.cells[1].outputs = [nbformat.v4.new_output("stream", text="seen")]
    theirs = notebook(title="# Rings", new="# More", setup=SETUP, ring=STUB, grade=GRADE)
    theirs.cells[2].metadata.tags = ["folded"]
    merged = merge(BASE, theirs, mine)
    assert merged.notebook.cells[2].metadata == {"tags": ["folded"]}
    assert sources(merged.notebook) == ["# Rings", "# More", SETUP, MINE, "my_try = 1", GRADE]
    assert merged.notebook.cells[2].outputs and (merged.kept, merged.both) == (2, [])


def test_an_exercise_whose_text_is_new_stands_above_the_learners():
    mine = notebook(title="# Ring", setup=SETUP, ring=MINE, grade=GRADE)
    new = STUB.replace("(x)", "(x, group)")
    theirs = notebook(title="# Ring", setup=SETUP, other=new, grade=GRADE)
    merged = merge(BASE, theirs, mine)
    assert sources(merged.notebook)[2:4] == [new, MINE] and merged.both == ["def ring(x):"]
    assert len({cell.id for cell in merged.notebook.cells}) == len(merged.notebook.cells)


def test_a_cell_that_the_course_dropped_goes_unless_the_learner_wrote_in_it():
    mine = notebook(title="# Ring", setup=SETUP, ring=MINE, grade=GRADE)
    merged = merge(BASE, notebook(title="# Ring"), mine)
    assert sources(merged.notebook) == ["# Ring", MINE]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone of a course of one lab, whose upstream lies beside it."""
    course = tmp_path / "course"
    (course / "labs").mkdir(parents=True)
    nbformat.write(BASE, course / "labs" / "e90.ipynb")
    for command in (["init", "-qb", "main"], *committed("first")):
        git(course, *command)
    git(tmp_path, "clone", "-q", str(course), "clone")
    return tmp_path / "clone"


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True)


def committed(message: str) -> list[list[str]]:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return [["add", "-A"], [*who, "commit", "-qm", message]]


def test_a_clone_is_brought_up_to_date(clone):
    lab, upstream = clone / "labs" / "e90.ipynb", clone.parent / "course"
    assert update(clone).merged == {}  # nothing new, nothing of mine
    mine = notebook(title="# Ring", setup=SETUP, ring=MINE, grade=GRADE)
    nbformat.write(mine, lab)
    written = lab.read_text()
    theirs = notebook(title="# Rings", setup=SETUP, ring=STUB, grade=GRADE)
    nbformat.write(theirs, upstream / "labs" / "e90.ipynb")
    for command in committed("second"):
        git(upstream, *command)
    done = update(clone)
    assert sources(nbformat.read(lab, 4))[::2] == ["# Rings", MINE] and done.before != done.after
    assert (done.copies / lab.name).read_text() == written
    again = update(clone)  # the learner's notebook is modified still, and nothing is lost
    assert again.before == again.after and sources(nbformat.read(lab, 4))[2] == MINE


def test_where_git_says_no_every_file_is_as_it_was(clone):
    lab = clone / "labs" / "e90.ipynb"
    nbformat.write(notebook(ring=MINE), lab)
    written = lab.read_text()
    git(clone, "remote", "set-url", "origin", str(clone.parent / "absent"))
    with pytest.raises(InputError, match="git pull failed"):
        update(clone)
    assert lab.read_text() == written


def test_a_notebook_that_the_course_dropped_stays_and_a_damaged_one_stops_the_update(clone):
    lab, upstream = clone / "labs" / "e90.ipynb", clone.parent / "course"
    for command in (["mv", "labs/e90.ipynb", "labs/e91.ipynb"], *committed("second")):
        git(upstream, *command)
    lab.write_text("<<<<<<< HEAD")
    with pytest.raises(InputError, match="is not a notebook"):
        update(clone)
    assert lab.read_text() == "<<<<<<< HEAD" and not (clone / "labs" / "e91.ipynb").exists()
    nbformat.write(notebook(ring=MINE), lab)
    assert update(clone).merged == {}
    assert sources(nbformat.read(lab, 4)) == [MINE] and (clone / "labs" / "e91.ipynb").exists()
