"""Lab in plain Python: cards as text, references where the learner's does not pass, nothing lost."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import FunctionType, SimpleNamespace

import pytest
import torch

from minitrain.errors import InputError
from minitrain.lab import Lab
from minitrain.lab.notebook.progress import Progress
from minitrain.lab.notebook.written import not_yet

COURSE = Path(__file__).parents[1] / "course"


@pytest.fixture(scope="module")
def one_lab() -> Lab:
    """Its sandbox is started once."""
    return Lab("e90_sums", COURSE)


@pytest.fixture
def lab(one_lab: Lab, tmp_path: Path) -> Lab:
    one_lab._progress = Progress("e90_sums", tmp_path / "progress")
    return one_lab


def load(tmp_path: Path, body: str):
    """A function `running_sum` from a file of its own, as a learner's cell would define it."""
    path = tmp_path / "cell.py"
    path.write_text(f"import torch\n\ndef running_sum(values):\n{body}\n")
    return defined(path)


def defined(path: Path):
    spec = importlib.util.spec_from_file_location("cell", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.running_sum


def test_a_right_answer_is_returned_and_scored(lab, tmp_path, capsys):
    mine = load(tmp_path, "    return torch.cumsum(values, 0)")
    assert lab.grade(mine) is mine
    assert "6 of 6 points" in capsys.readouterr().out
    assert lab.progress.points == {"running_sum": [6, 6]}
    assert repr(lab).endswith("1 of 3 done")


def test_a_wrong_one_gets_its_words_and_the_reference(lab, tmp_path, capsys):
    wrong = load(tmp_path, "    return torch.cumsum(values, 0).flip(0)")
    assert lab.grade(wrong) is torch.cumsum
    said = capsys.readouterr().out
    assert "2 of 6 points" in said and "summed from the end" in said


def test_the_stub_and_the_reference_earn_nothing(lab, tmp_path, capsys):
    stub = load(tmp_path, '    """The sum."""\n    # YOUR CODE HERE\n    ...')
    assert lab.grade(stub) is torch.cumsum
    assert "6 points\n  Not written yet: the reference stands in" in capsys.readouterr().out
    assert lab.grade(torch.cumsum) is torch.cumsum
    assert "run the cell of your `running_sum`" in capsys.readouterr().out
    assert lab.progress.points == {}


def test_a_class_tells_which_methods_are_not_written(lab, tmp_path):
    mark = "        # YOUR CODE HERE\n        ...\n"
    body = f"    def up(self):\n{mark}\n    def down(self):\n        return 1\n\n    def on(self):\n{mark}"
    (tmp_path / "cell.py").write_text(f"class running_sum:\n{body}")
    assert not_yet(defined(tmp_path / "cell.py")).startswith("Not written yet (`up`, `on`): the r")
    assert not_yet(load(tmp_path, "    return 1")) == ""


def test_a_cell_that_is_no_python_is_told_instead_of_grading_the_one_before(lab, monkeypatch):
    """Run in IPython, that keeps what was typed: the function is still that of an earlier run."""
    shell = SimpleNamespace(user_ns={"In": ["def running_sum(values):\n    return (values"]})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    running_sum = FunctionType((lambda values: values).__code__, {}, "running_sum")
    assert "is not Python yet: line 2, '(' was never closed" in not_yet(running_sum)
    shell.user_ns["In"].append("def running_sum(values):\n    return values")
    assert not_yet(running_sum) == ""


def test_experiment_and_question(lab, tmp_path, capsys):
    lab.grade(load(tmp_path, "    return torch.cumsum(values, 0)"))
    lab.experiment("growth", {"n": [1, 2], "sum": [1.0, 2.0]})
    lab.answer("largest", torch.tensor(2.0))
    said = capsys.readouterr().out
    assert "3 of 3 points" in said and "1 of 1 point\n" in said
    assert lab.records == {"growth": [{"n": 1, "sum": 1.0}, {"n": 2, "sum": 2.0}]}
    assert lab.progress.answers == {"largest": 2.0}


def test_what_rests_on_the_reference_waits(lab, tmp_path, capsys):
    """Points are for one's own work: right tables and answers count once their function passes."""
    rows = {"n": [1, 2], "sum": [1.0, 2.0]}
    lab.experiment("growth", rows), lab.answer("largest", 2.0)
    said = capsys.readouterr().out
    assert "0 of 3 points" in said and "counts once you have earned running_sum" in said
    assert "counts once you have earned growth" in said and "waits" in said
    lab.experiment("growth", {"n": [1], "sum": [7.0]})  # and what is wrong is told at once
    assert "expected 1" in capsys.readouterr().out
    lab.grade(load(tmp_path, "    return torch.cumsum(values, 0)"))
    lab.experiment("growth", rows), lab.answer("largest", 2.0)
    assert sum(best for best, _ in lab.progress.points.values()) == 10


def test_nothing_recorded_yet_and_a_missing_column_are_told(lab, capsys):
    lab.experiment("growth", None), lab.experiment("growth", []), lab.answer("largest", None)
    lab.predict("last_sum", None), lab.reveal("last_sum", 10, count=4)
    said = capsys.readouterr().out
    assert said.count("Nothing recorded yet") == 2 and "No answer yet" in said
    assert "Your guess\n  Put a number in place of None" in said
    assert "10" not in said.split("What was found: hidden until you")[1]
    assert lab.progress.points == {}
    lab.experiment("growth", [{"n": 1}])
    assert "no column 'sum'" in capsys.readouterr().out
    assert lab.progress.points["growth"] == [0, 3]


@pytest.mark.parametrize(
    "guess, measured, unit, verdicts",
    [
        (101, 100, "", ["your guess is 1% above"]),
        (-1, 3, "", ["off by 4"]),
        (0.3, 0.0811, "share", ["Your guess: 30%", "8.11%"]),
        (12e6, 1.5e6, "B", ["12 MB", "1.5 MB", "8 times too large"]),
    ],
)
def test_a_guess_then_the_measurement_and_their_distance_in_words(
    lab, capsys, guess, measured, unit, verdicts
):
    lab.predict("x", guess, unit=unit), lab.reveal("x", measured)
    said = capsys.readouterr().out
    assert all(verdict in said for verdict in verdicts), said


@pytest.mark.parametrize(
    "gpus, tier, elements, repeats",
    [(0, None, 8, 3), (2, None, 1024, 3), (0, "gpu", 1024, 3), (2, "test", 8, 1)],
)
def test_sizes_by_tier(tmp_path, monkeypatch, gpus, tier, elements, repeats):
    """Of the hardware, or of who asks; a tier lacks what the one below has."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a GPU")
    monkeypatch.setattr("minitrain.lab.notebook.lab.warm", lambda lab: None)
    lab = Lab("e90_sums", COURSE, tmp_path, tier)
    assert lab.tier == tier or tier is None
    assert lab.size("elements") == elements and lab.size("repeats") == repeats


def test_another_session_goes_on_where_this_one_ended(lab, tmp_path, capsys):
    lab.grade(load(tmp_path, "    return torch.cumsum(values, 0)"))
    lab.experiment("growth", [{"n": 1, "sum": 1}])
    capsys.readouterr()
    again = Lab("e90_sums", COURSE, progress_folder=tmp_path / "progress")
    assert repr(again).endswith("2 of 3 done") and again.records == lab.records
    headline, where = capsys.readouterr().out.splitlines()
    assert headline == repr(again) and "reset" not in headline
    assert str(tmp_path / "progress" / "e90_sums.json") in where and "lab.reset()" in where


def test_a_lab_can_be_started_over_and_nothing_is_lost(lab, capsys):
    lab.experiment("growth", [{"n": 1, "sum": 1}])
    assert "1 row kept." in capsys.readouterr().out
    lab.reset()
    first, where = capsys.readouterr().out.splitlines()
    assert first.endswith("0 of 3 done") and lab.records == {}
    assert "growth" in Path(where.removeprefix("what you had is in ")).read_text()
    lab.reset()
    assert "what you had" not in capsys.readouterr().out


def test_score_names_what_is_open(lab, tmp_path, capsys):
    lab.grade(load(tmp_path, "    return torch.cumsum(values, 0)"))
    lab.experiment("growth", [{"n": 1, "sum": 1}])
    lab.score()
    said = capsys.readouterr().out
    assert "9 of 10 points" in said and "to do" in said and "done" in said


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda lab: Lab("e90_sumz", COURSE), "did you mean 'e90_sums'"),
        (lambda lab: Lab("e90_sums", COURSE, tier="tiny"), "no tier is called 'tiny'"),
        (lambda lab: lab.grade(load_named("runing_sum")), "did you mean 'running_sum'"),
        (lambda lab: lab.grade(3), "takes the function or class"),
        (lambda lab: lab.experiment("grwth", [{"n": 1}]), "did you mean 'growth'"),
        (lambda lab: lab.experiment("growth", 5), "'growth' is a int"),
        (lambda lab: lab.experiment("growth", [{"n": float("inf")}]), "row 0, n is inf"),
        (lambda lab: lab.answer("biggest", 1), "no question of e90_sums is called 'biggest'"),
        (lambda lab: lab.answer("largest", object()), "cannot be kept"),
        (lambda lab: lab.predict("x", "many"), "needs one number"),
        (lambda lab: lab.size("element"), "did you mean 'elements'"),
    ],
)
def test_bad_input_is_told_in_one_sentence(lab, call, said):
    with pytest.raises(InputError, match=said.replace("'", ".")) as caught:
        call(lab)
    assert "\n" not in str(caught.value)


def load_named(name: str):
    def function(values):
        return values

    function.__name__ = name
    return function
