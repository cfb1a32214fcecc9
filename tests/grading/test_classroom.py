"""A folder of submissions: who handed in what, in parallel, and going on where it was."""

from __future__ import annotations

import csv
import multiprocessing
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from minitrain.errors import InputError
from minitrain.lab.grading.classroom import MEMORY_BYTES, _alone, _mark, grade_folder
from minitrain.lab.grading.collect import Entry, find_class, find_lab, find_submissions
from minitrain.lab.grading.results import CheckResult, Report
from minitrain.lab.grading.rows import as_csv, failed, finished, graded, read_rows
from minitrain.lab.grading.submission import read_submission

NOTHING = [('lab = Lab("t00_tiny")', ["setup"], [])]  # cells that are graded without a run


@pytest.fixture
def folder(complete, notebook, tmp_path) -> Path:
    """Five students, three layouts, one of them broken."""
    complete("class/ada/t00_tiny.ipynb")
    notebook("class/bob/t00_tiny/t00_tiny.ipynb", NOTHING)
    notebook("class/cyd_t00_tiny.ipynb", NOTHING)
    (tmp_path / "class" / "dan_t00_tiny.ipynb").write_text("not JSON")
    notebook("class/eve/homework.ipynb", [("x = 1", [], [])])
    complete("class/ada/.ipynb_checkpoints/t00_tiny-checkpoint.ipynb")
    return tmp_path / "class"


def test_who_handed_in_what(folder, course):
    found = [(e.student, e.lab) for e in find_submissions(folder, course)]
    assert found == [*((name, "t00_tiny") for name in ("ada", "bob", "cyd", "dan")), ("eve", "")]


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
    assert [r.score for r in rows.values()] == ["7", *"0000"]
    assert [s for s, r in rows.items() if r.error] == ["dan", "eve"]
    assert "is not a notebook" in rows["dan"].error and "which lab" in rows["eve"].error
    bar = capfd.readouterr().err
    assert "grading: 100%" in bar and re.search(r"s/file, \w+ (t00)?", bar), "those under way"
    with path.open(encoding="utf-8-sig") as file:
        assert [row["student"] for row in csv.DictReader(file)] == list(rows)

    shutil.copy(folder / "ada" / "t00_tiny.ipynb", folder / "dan_t00_tiny.ipynb")
    again = {row.student: row for row in grade_folder(folder, path, 2, course)}
    assert again["dan"].score == "7" and again["ada"] == rows["ada"]
    assert "1/1" in capfd.readouterr().err, "only dan's was graded again"


def test_the_same_draw_gives_the_same_table_byte_for_byte(notebook, tmp_path, course):
    """What is said of a wrong answer holds the numbers that were drawn."""
    cells = [("def chunk_sizes(elements, ranks):\n    return [elements] * ranks", [], [])]
    notebook("class/ada/t00_tiny.ipynb", cells)
    tables = []
    for name, draw in (("a", 7), ("b", 7), ("c", 8)):
        grade_folder(tmp_path / "class", tmp_path / f"{name}.csv", 2, course, draw=draw)
        tables.append((tmp_path / f"{name}.csv").read_bytes())
    assert tables[0] == tables[1] != tables[2]


def test_what_is_no_submission_costs_its_own_row(notebook, course, tmp_path):
    """Links, folders, pipes, holes of gigabytes and names that are no text."""
    work = notebook("class/ada/t00_tiny.ipynb", NOTHING)
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
    assert said["ada"] == ""
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


class Hungry(Deadly):
    """Takes more memory than a verdict may."""

    refused = property(lambda self: bytearray(MEMORY_BYTES + 2**20))
    __reduce__ = object.__reduce__


def test_a_verdict_has_a_limit_of_memory():
    row = _alone(multiprocessing.get_context("forkserver"), {}, Hungry(), "", None)
    assert row.error == "the grader failed: MemoryError:"


def test_a_row_depends_on_whether_it_was_isolated(complete, course, monkeypatch):
    """What was graded without bubblewrap is graded again where it is."""
    entry, marks = Entry("ada", "t00_tiny", complete()), set()
    for isolated in (True, False):
        monkeypatch.setattr("minitrain.lab.grading.classroom._is_isolated", lambda i=isolated: i)
        marks.add(_mark(entry, course))
    assert len(marks) == 2


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


def test_a_row_depends_on_what_runs_beside_the_submission_too(complete, course, tmp_path):
    root = shutil.copytree(course, tmp_path / "course")
    entry = Entry("ada", "t00_tiny", complete("t00_tiny.ipynb"))
    before = _mark(entry, root)
    probes = root / "tests" / "labs" / "probes"
    probes.mkdir()
    (probes.parent / "test_t01_other.py").write_text("x = 1\n")
    (probes / "t01_other.py").write_text("x = 1\n")
    assert _mark(entry, root) == before
    (probes / "shared.py").write_text("x = 1\n")
    assert _mark(entry, root) != before
    (probes / "shared.py").unlink()
    (probes / "t00_tiny.py").write_text("x = 1\n")
    assert _mark(entry, root) != before


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=cmd()", "'=cmd()"),
        ("+1 | a", "'+1 | a"),
        ("＝1+1", "'＝1+1"),
        ("ada; =cmd()", "ada;' =cmd()"),
        ("\u202eada\u2066;\t@x", "ada;' @x"),
        ("a=1; b-c", "a=1; b-c"),
    ],
)
def test_no_cell_is_a_formula(name, cell, tmp_path):
    """In no spreadsheet: where numbers have a decimal comma, cells end at a semicolon."""
    rows = [failed(Entry(name, "t00_tiny", Path(name)), name, "x")]
    (tmp_path / "g.csv").write_text(as_csv(rows))
    assert read_rows(tmp_path / "g.csv") == rows, "else it would be graded again"
    assert (rows[0].student, rows[0].error, rows[0].file) == (cell, cell, cell)


def test_a_row_is_one_line_whatever_a_student_is_called(notebook, course, tmp_path):
    """And of what a spreadsheet saves, rows that it has damaged are graded again."""
    work = notebook("class/ada/t00_tiny.ipynb", NOTHING)
    odd = tmp_path / "class" / "m\n;=1+1\r\x1b[31mü"
    odd.mkdir()
    shutil.copy(work, odd)
    path = tmp_path / "grades.csv"
    rows = grade_folder(tmp_path / "class", path, 2, course)
    assert [row.student for row in rows] == ["ada", "m ;'=1+1[31mü"]
    assert path.read_bytes().startswith(b"\xef\xbb\xbfstudent,"), "Excel reads UTF-8 by this mark"
    assert len(path.read_text(encoding="utf-8").splitlines()) == 3
    path.write_text(path.read_text(encoding="utf-8").replace('""points""', "points", 1))
    assert [row.graded_from != "" for row in read_rows(path)] == [False, True]
    assert grade_folder(tmp_path / "class", path, 2, course) == rows


def test_every_students_folder_has_a_row(notebook, course, tmp_path):
    """One that is a link, one without a notebook, and one with hundreds."""
    notebook("class/ada/t00_tiny.ipynb", NOTHING)
    folder = tmp_path / "class"
    (folder / "bob").symlink_to(folder / "ada")
    (folder / "cyd").mkdir()
    (folder / "cyd" / "t00_tiny.docx").write_text("mine")
    (folder / "dan").mkdir()
    for number in range(101):
        (folder / "dan" / f"t00_tiny-{number}.ipynb").touch()
    (folder / ".git").mkdir()
    rows = {row.student: row for row in grade_folder(folder, tmp_path / "g.csv", 1, course)}
    assert sorted(rows) == ["ada", "bob", "cyd", "dan"] and rows["ada"].error == ""
    assert "bob is a link" in rows["bob"].error
    assert "cyd holds no notebook" in rows["cyd"].error
    assert "there are 101 files of dan, more than 100" in rows["dan"].error


def test_no_folder_ends_the_search(complete, course, tmp_path):
    """Thousands of folders in one another, and links that lead where nobody can look."""
    complete("class/ada/t00_tiny.ipynb")
    folder = tmp_path / "class"
    (folder / "deep").mkdir()
    (folder / "deep" / "out").symlink_to("x" * 300)
    (folder / "out").symlink_to("x" * 300)
    place = os.open(folder / "deep", os.O_RDONLY)
    for _ in range(2000):
        os.mkdir("a", dir_fd=place)
        inner = os.open("a", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    found = {e.student: e.refused for e in find_class(folder, course)}
    assert list(found) == ["ada", "deep", "out"] and found["ada"] == ""
    assert "holds no notebook" in found["deep"] and "is a link" in found["out"]
    subprocess.run(["rm", "-rf", folder], check=True)  # pytest's own way is a recursion


def test_a_student_whose_files_take_long_holds_up_nobody(notebook, course, tmp_path, monkeypatch):
    """A hundred files that hang for five minutes each are the next call's, one by one."""
    for name in ("ada/t00_tiny", "eve/t00_tiny-1", "eve/t00_tiny-2"):
        notebook(f"class/{name}.ipynb", NOTHING)
    monkeypatch.setattr("minitrain.lab.grading.classroom.STUDENT_SECONDS", 0.0)
    for graded_so_far in (2, 3):
        rows = grade_folder(tmp_path / "class", tmp_path / "g.csv", 1, course)
        later = [row.error for row in rows if row.error]
        assert len(rows) - len(later) == graded_so_far
        assert all("not graded yet" in error for error in later)


def test_a_name_behind_the_labs_is_a_students_too(complete, course, tmp_path):
    complete("class/t00_tiny_ada.ipynb")
    (entry,) = find_submissions(tmp_path / "class", course)
    assert entry.student == "ada"


KILL = "\n    import os\n    os.kill(os.getpid(), 9)"
HOG = "\n    x = []\n    while True: x.append(bytearray(2**26))"
SAY = "\n    raise ValueError('[/b]' + chr(0xd800) + '\\x1b[31m' + 'x' * 10**6)"
EXIT = "\n    import os\n    os._exit(0)"


def test_a_hostile_few_cost_the_others_nothing(complete, notebook, course, tmp_path):
    """Two honest students among four who attack: right rows, in order, the same bytes twice."""
    honest = ["s0", "s1"]
    right, wrong = (complete(f"class/{name}/t00_tiny.ipynb") for name in honest)
    wrong.write_text(right.read_text().replace("elements // ranks +", "elements // ranks -"))
    for name, body in {"a_kill": KILL, "m_hog": HOG, "x_say": SAY, "z_exit": EXIT}.items():
        cells = [
            (f"def {f}(*args):{body}", ["exercise"], []) for f in ("chunk_sizes", "sum_over_ranks")
        ]
        notebook(f"class/{name}/t00_tiny.ipynb", cells)
    for name in ("typer.py", "torch.py", "sitecustomize.py"):
        (tmp_path / "class" / "x_say" / name).write_text("raise SystemExit('theirs')")
    csv_path = tmp_path / "grades.csv"
    rows = {row.student: row for row in grade_folder(tmp_path / "class", csv_path, 2, course)}
    assert list(rows) == ["a_kill", "m_hog", *honest, "x_say", "z_exit"]
    assert [rows[name].score for name in honest] == ["7", "6"]
    said = {name: row.remarks for name, row in rows.items() if name not in honest}
    assert all(rows[name].score == "0" for name in said)
    assert "SIGKILL" in said["a_kill"] and "of memory" in said["m_hog"]
    assert "ValueError: [/b][31mxxx" in said["x_say"] and "os._exit" in said["z_exit"]
    before = csv_path.read_bytes()
    grade_folder(tmp_path / "class", csv_path, 2, course)
    assert csv_path.read_bytes() == before


def test_classmates_with_the_same_numbers_are_both_named_and_may_lose_the_points(tmp_path):
    """Each time anew, since it depends on the others."""
    lab = "e03_zero"
    checks = (
        CheckResult("steps", "a", 6.0, 6.0, "passed"),
        CheckResult("f", "b", 4.0, 4.0, "passed"),
    )
    own = {"ada": ["1", "2", "3", "4"], "bob": ["2", "3", "4"], "eve": ["5", "6", "7"]}
    rows = [
        graded(
            Entry(name, lab, Path(f"{name}.ipynb")),
            Report(lab, checks, sources={"steps": ["steps"]}, prints={"steps": prints}),
            "x",
        )
        for name, prints in own.items()
    ]
    ada, bob, eve = finished(rows)
    assert ada.doubts == "steps: the same measured numbers as bob" and ada.score == "10"
    assert bob.doubts == "steps: the same measured numbers as ada" and eve.doubts == ""
    assert [row.score for row in finished(rows, withhold=True)] == ["4", "4", "10"]
    assert finished(rows, withhold=True)[0].doubts.endswith("| withheld: 6 points")
    (tmp_path / "g.csv").write_text(as_csv(finished(rows, withhold=True)))
    assert finished(read_rows(tmp_path / "g.csv")) == [ada, bob, eve], "nothing adds up"
    assert [row.doubts for row in finished([rows[0], rows[2]])] == ["", ""], "bob's is gone"
    twice = finished([rows[0], replace(rows[0], file="again.ipynb")])
    assert {row.doubts for row in twice} == {"one of 2 files of this student for one lab"}
