"""A folder of submissions: who handed in what, in parallel, and going on where it was."""

from __future__ import annotations

import csv
import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from minitrain.errors import InputError
from minitrain.lab.grading.classroom import _alone, grade_folder
from minitrain.lab.grading.collect import find_lab, find_submissions
from minitrain.lab.grading.rows import Grade, as_csv, read_rows
from minitrain.lab.grading.submission import read_submission


@pytest.fixture
def folder(complete, notebook, tmp_path) -> Path:
    """Five students, three layouts, one of them broken."""
    complete("class/ada/t00_tiny.ipynb")
    complete("class/bob/t00_tiny/t00_tiny.ipynb")
    complete("class/cyd_t00_tiny.ipynb")
    (tmp_path / "class" / "dan_t00_tiny.ipynb").write_text("not JSON")
    notebook("class/eve/homework.ipynb", [("x = 1", [], [])])
    complete("class/ada/.ipynb_checkpoints/t00_tiny-checkpoint.ipynb")
    return tmp_path / "class"


def test_who_handed_in_what(folder, course):
    found = [(e.student, e.lab) for e in find_submissions(folder, course)]
    assert found == [
        ("ada", "t00_tiny"),
        ("bob", "t00_tiny"),
        ("cyd", "t00_tiny"),
        ("dan", "t00_tiny"),
        ("eve", ""),
    ]


def test_the_lab_is_known_by_the_files_name_or_by_its_own_word(complete, notebook, course):
    assert find_lab(read_submission(complete("mine (2).ipynb")), course) == "t00_tiny"
    assert find_lab(read_submission(notebook("ada-t00_tiny-3.ipynb", [])), course) == "t00_tiny"
    with pytest.raises(InputError, match="does not say which lab it is"):
        find_lab(read_submission(notebook("mine.ipynb", [("x = 1", [], [])])), course)
    with pytest.raises(InputError, match="did you mean 't00_tiny'"):
        find_lab(read_submission(notebook("mine.ipynb", [('Lab("t00_tinny")', [], [])])), course)


def test_an_empty_folder_is_one_sentence(tmp_path, course):
    with pytest.raises(InputError, match="holds no submissions"):
        find_submissions(tmp_path, course)


def test_a_class_is_graded_and_only_the_new_is_graded_again(folder, course, tmp_path, capfd):
    path = tmp_path / "grades.csv"
    rows = {row.student: row for row in grade_folder(folder, path, 2, course)}
    assert {s: r.score for s, r in rows.items()} == {
        "ada": "7",
        "bob": "7",
        "cyd": "7",
        "dan": "0",
        "eve": "0",
    }
    assert "is not a notebook" in rows["dan"].error and "which lab" in rows["eve"].error
    assert "grading: 100%" in capfd.readouterr().err
    with path.open(encoding="utf-8-sig") as file:
        assert [row["student"] for row in csv.DictReader(file)] == [
            "ada",
            "bob",
            "cyd",
            "dan",
            "eve",
        ]

    shutil.copy(folder / "ada" / "t00_tiny.ipynb", folder / "dan_t00_tiny.ipynb")
    again = {row.student: row for row in grade_folder(folder, path, 2, course)}
    assert again["dan"].score == "7" and again["ada"] == rows["ada"]
    assert "1/1" in capfd.readouterr().err, "only dan's was graded again"


def test_what_is_no_submission_costs_its_own_row(complete, course, tmp_path):
    """Links, folders, pipes, holes of gigabytes and names that are no text."""
    work = complete("class/ada/t00_tiny.ipynb")
    folder = tmp_path / "class"
    for name in ("copy", "nowhere", "pipe", "hole", "folder"):
        (folder / name).mkdir()
    (folder / "copy" / "t00_tiny.ipynb").symlink_to(work)
    (folder / "nowhere" / "t00_tiny.ipynb").symlink_to("gone")
    (folder / "folder" / "t00_tiny.ipynb").mkdir()
    os.mkfifo(folder / "pipe" / "t00_tiny.ipynb")
    with (folder / "hole" / "t00_tiny.ipynb").open("wb") as file:
        file.truncate(2**33)
    shutil.copy(work, os.fsencode(folder) + b"/n\xff\r_t00_tiny.ipynb")
    rows = grade_folder(folder, tmp_path / "grades.csv", 2, course)
    said = {row.student: row.error for row in rows}
    assert [row.score for row in rows if not row.error] == ["7", "7"] and said["ada"] == ""
    assert "is a link: hand in" in said["copy"] and "is a link" in said["nowhere"]
    assert "is no file" in said["pipe"] and "is no file" in said["folder"]
    assert "8192 MB, more than 64" in said["hole"]
    assert said["n"] == "" and read_rows(tmp_path / "grades.csv") == rows


class Deadly:
    """Ends the process that loads it, as a verdict that takes all memory does."""

    student, lab, path = "ada", "t00_tiny", Path("t00_tiny.ipynb")

    def __reduce__(self):
        return os._exit, (3,)


def test_a_process_that_dies_costs_its_own_row():
    row = _alone(multiprocessing.get_context("forkserver"), {}, Deadly(), "", None)
    assert (row.student, row.score) == ("ada", "0") and "ended with exit code 3" in row.error


def test_who_has_no_notebook_is_graded_by_the_script(complete, tmp_path, course):
    complete("class/ada/t00_tiny.ipynb")
    complete("class/bob/notes.ipynb")
    for name in ("ada", "cyd"):
        (tmp_path / "class" / name).mkdir(exist_ok=True)
        (tmp_path / "class" / name / "t00_tiny.py").write_text("x = 1\n")
    found = [(e.student, e.path.name) for e in find_submissions(tmp_path / "class", course)]
    assert found == [("ada", "t00_tiny.ipynb"), ("bob", "notes.ipynb"), ("cyd", "t00_tiny.py")]


def test_a_csv_of_something_else_is_left_alone(folder, course, tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text("name,age\nada,36\n")
    with pytest.raises(InputError, match="is not a table of grades"):
        grade_folder(folder, path, 1, course)
    assert path.read_text() == "name,age\nada,36\n"


def test_no_cell_is_a_formula(tmp_path):
    row = Grade("=cmd()", "t00_tiny", "1", "2", "", "+1 | a", "", "f.ipynb", "x")
    (tmp_path / "g.csv").write_text(as_csv([row]))
    (read,) = read_rows(tmp_path / "g.csv")
    assert read.student == "'=cmd()" and read.remarks == "'+1 | a" and read.score == "1"
