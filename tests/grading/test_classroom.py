"""A folder of submissions: who handed in what, in parallel, and going on where it was."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest

from minitrain.errors import InputError
from minitrain.lab.grading.classroom import Grade, as_csv, grade_folder, read_rows
from minitrain.lab.grading.collect import find_lab, find_submissions
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
    with path.open() as file:
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


def test_a_csv_of_something_else_is_left_alone(folder, course, tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text("name,age\nada,36\n")
    with pytest.raises(InputError, match="is not a table of grades"):
        grade_folder(folder, path, 1, course)
    assert path.read_text() == "name,age\nada,36\n"


def test_no_cell_is_a_formula(tmp_path):
    row = Grade("=cmd()", "t00_tiny", "1", "2", "", "+1 | a", "f.ipynb", "x")
    (tmp_path / "g.csv").write_text(as_csv([row]))
    (read,) = read_rows(tmp_path / "g.csv")
    assert read.student == "'=cmd()" and read.remarks == "'+1 | a" and read.score == "1"
