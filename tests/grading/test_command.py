"""`python -m minitrain grade` on the course's own labs, and on what is none; pytest's own option."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from types import SimpleNamespace

import pytest

from minitrain.__main__ import main
from minitrain.apps.grade import _jobs
from minitrain.lab.grading.results import Report
from minitrain.lab.grading.rows import read_rows
from minitrain.paths import course_root

LAB = "e00_ranks_and_collectives"


@pytest.fixture
def run(monkeypatch, capfd):
    """run("labs/x.ipynb", "--json") -> exit code, stdout, stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.chdir(course_root())
        monkeypatch.setattr(sys, "argv", ["minitrain", "grade", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        return end.value.code or 0, *capfd.readouterr()

    return call


def test_an_empty_lab_is_graded_in_every_form(run, tmp_path):
    xml, results = tmp_path / "r.xml", tmp_path / "r.json"
    code, out, err = run(f"labs/{LAB}.ipynb", "--json", "--junit", xml, "--gradescope", results)
    report = json.loads(out)
    assert code == 0 and all(line.startswith("warning: ") for line in err.splitlines())
    assert (report["lab"], report["score"], report["max_score"]) == (LAB, 0, 100)
    assert {check["status"] for check in report["checks"]} <= {"not attempted", "failed"}
    assert ET.parse(xml).getroot()[0].get("tests") == str(len(report["checks"]))
    assert json.loads(results.read_text())["score"] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["labs/e00_ranks_and_colectives.ipynb"], f"did you mean labs/{LAB}.ipynb?"),
        (["e00_ranks_and_collective"], f"did you mean {LAB}?"),
        (["pyproject.toml"], "neither a notebook (.ipynb) nor Python (.py)"),
        (["minitrain/errors.py"], "does not say which lab it is"),
        (["data"], "holds no submissions"),
        ([f"labs/{LAB}.ipynb", "--csv", "grades.csv"], "--csv grades one folder"),
        (["labs", "--csv", "new.csv", "--jobs", "0"], "--jobs is '0'"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(run, arguments, words):
    code, out, err = run(*arguments)
    assert code == 2 and out == ""
    assert words in err and err.startswith("error: ") and len(err.strip().splitlines()) == 1


def test_a_files_name_cannot_talk_to_the_terminal(run, tmp_path):
    odd = tmp_path / "a\x1b]0;owned\x07\u202eb.ipynb"
    odd.write_text("no JSON")
    code, _, err = run(odd)
    assert code == 2 and err.startswith("error: ") and "a]0;ownedb.ipynb is not a notebook" in err
    assert not set("\x1b\x07\u202e") & set(err)


def test_a_bad_notebook_does_not_end_a_folder(run, tmp_path, monkeypatch):
    monkeypatch.setattr("minitrain.apps.grade._report", lambda *_: Report(LAB, ()))
    for name, text in (("bad", "{"), ("good", (course_root() / f"labs/{LAB}.ipynb").read_text())):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{LAB}.ipynb").write_text(text)
    code, out, err = run(tmp_path)
    assert code == 2 and f"{LAB}: " in out and "0 of 0 points" in out
    assert f"bad/{LAB}.ipynb is not a notebook" in err and "good" not in err


def test_who_grades_as_root_is_told(run, monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("minitrain.apps.grade._report", lambda *_: Report("e00", ()))
    _, _, err = run(f"labs/{LAB}.ipynb")
    assert "warning: you are root" in err


def test_gradescope_takes_each_lab_once_and_says_so_before_it_grades(run, tmp_path, monkeypatch):
    """It adds up all points: one notebook handed in twice would count twice."""
    monkeypatch.setattr("minitrain.apps.grade._report", lambda *_: pytest.fail("it grades"))
    twice = [f"labs/{LAB}.ipynb"] * 2
    code, _, err = run(*twice, "--gradescope", tmp_path / "results.json")
    assert code == 2 and "give each lab once" in err and not list(tmp_path.iterdir())


def test_one_lab_is_graded_and_the_others_that_lie_beside_it_are_not(run, tmp_path, monkeypatch):
    monkeypatch.setattr("minitrain.apps.grade._report", lambda _, lab, *how: Report(lab, ()))
    for name in ("e00_ranks_and_collectives", "e01_baseline"):
        (tmp_path / f"{name}.ipynb").write_bytes(
            (course_root() / f"labs/{name}.ipynb").read_bytes()
        )
    code, out, _ = run(tmp_path, "--lab", "e01_baseline", "--json")
    assert code == 0 and json.loads(out)["lab"] == "e01_baseline"
    code, _, err = run(tmp_path, "--lab", "e10_cost")
    assert code == 2 and "none of 2 files is of e10_cost" in err
    code, _, err = run(tmp_path, "--lab", "e01_baselin")
    assert code == 2 and "e01_baseline" in err
    code, _, err = run(tmp_path, "--csv", tmp_path / "g.csv", "--lab", "e01_baseline")
    assert code == 2 and "leave --lab out" in err


@pytest.mark.parametrize(("cores", "gigabytes", "jobs"), [(2, 24, 2), (64, 32, 8), (4, 2, 1)])
def test_there_are_no_more_processes_than_memory_has_room_for(monkeypatch, cores, gigabytes, jobs):
    memory = SimpleNamespace(total=gigabytes * 2**30)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    assert _jobs() == jobs


def test_a_class_ends_with_its_means_and_its_doubts(run, tmp_path):
    """Two students who hand in the exercise that the solution's tables rest on, and the tables."""
    for name in ("ada", "bob"):
        (tmp_path / name).mkdir()
        copied = json.loads((course_root() / "solutions" / f"{LAB}.ipynb").read_text())
        for cell in copied["cells"]:
            is_other = "def ring_all_reduce(" not in "".join(cell["source"])
            if is_other and "exercise" in cell["metadata"].get("tags", []):
                cell["source"] = ""
        (tmp_path / name / f"{LAB}.ipynb").write_text(json.dumps(copied))
    table = tmp_path / "grades.csv"
    code, out, _ = run(tmp_path, "--csv", table, "--withhold-doubtful", "--jobs", "2")
    rows = {row.student: row for row in read_rows(table)}
    assert code == 0 and f"{LAB}: 2 files, mean 48.0 of 100" in " ".join(out.split())
    assert "2 rows with something to ask about" in out
    assert "as bob" in rows["ada"].doubts and "recorded in solutions/" in rows["ada"].doubts
    assert rows["ada"].score == rows["bob"].score == "13" and "withheld: 35" in rows["ada"].doubts


def test_what_is_right_passes_a_mistake_fails_and_a_stub_is_skipped(course: Path, tmp_path: Path):
    """`pytest tests/labs --submission …`, on a copy of the course with the tiny lab."""
    labs = shutil.copytree(course / "tests" / "labs", tmp_path / "tests" / "labs")
    shutil.copy(course_root() / "tests" / "labs" / "conftest.py", labs)
    source = "def chunk_sizes(n, ranks):\n    return [n // ranks] * ranks\n\n"
    source += "def sum_over_ranks(group, x):\n    raise NotImplementedError\n"
    (tmp_path / "t00_tiny.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-rsf", "--import-mode=importlib"]
    command += ["-p", "no:cacheprovider", str(labs), "--submission", str(tmp_path / "t00_tiny.py")]
    out = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=labs).stdout
    assert "1 failed, 1 passed, 4 skipped" in out, out
    assert "got [2, 2, 2, 2], expected [3, 3, 2, 2]" in out or "item 0: got 2, expected 3" in out
    assert "not filled in yet" in out and "carries no recorded data" in out
