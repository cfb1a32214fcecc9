"""200 drawn arguments over all commands: exit code 0 or 2, one sentence on stderr, no traceback.

The commands and their options are read off the command tree, so a new one is drawn, too. A draw
runs in this process, from `main` to the function of the command, which is replaced by one that
notes that it was called (`WORK`: what takes seconds, asks the network or opens a server). The
options are read, checked and turned into the commands' own objects before that, which is where a
hostile one is caught or not; `plan`, but for a search of many thousand chips, runs whole. Whatever
escapes `main` as another exception than SystemExit fails the test as the traceback that it is.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
import typer.main

from minitrain.__main__ import app
from minitrain.lab.building.update import Update
from minitrain.planning.columns import COLUMNS
from minitrain.planning.validate import Checked, Table

from .command_line import minitrain

DRAWS = 200
ROOT = Path(__file__).parents[3]
ONE_TABLE = Table("table", 0.0, 0.0, [Checked("row", 1.0, 1.0, 0.0)], "fitted")
WORK = {
    "minitrain.apps.train.command.run": ("trained", False),
    "minitrain.apps.finetune.command.run": ("tuned", False),
    "minitrain.apps.models.fetch_model": Path("fetched"),
    "minitrain.apps.generate.answer": None,
    "minitrain.apps.load.command.run": None,
    "minitrain.apps.bench.chosen_cases": [],
    "minitrain.apps.data.run": None,
    "minitrain.apps.lab.become": None,
    "minitrain.apps.watch.command.show": None,
    "minitrain.apps.lab._build": None,
    "minitrain.apps.lab._report_drift": 0,
    "minitrain.apps.grade._report": None,
    "minitrain.apps.grade._write": None,
    "minitrain.lab.grading.classroom.grade_folder": [],
    "minitrain.data.assets.fetch.fetch": Path("fetched"),
    "minitrain.lab.notebook.health.examine": [],
    "minitrain.planning.validate.validate": [ONE_TABLE],
    "minitrain.lab.building.update.update": Update("1a", "1a", {}, None),
    "minitrain.lab.building.update.new_commits": 0,
}
HOSTILE = [
    "nan", "inf", "-inf", "-1", "0", "0.5", "1e30", "1e400", "-0.0", str(10**40), "9" * 5000, "",
    " ", "١٢", "naïve", "🙂", "\udcff", "\n", "a\tb\nc", "[/bold]", "--", "-", "*", "%s", "{}", "'",
    "true", "None", "1,2", ",", "2-1", "1-2-3", "x" * 5000, "/proc/nope", "/dev/null", "/", ".",
    "nowhere/at/all", "C:\\nope", "cuda:99", "meta", "cpu:", "bogus.invalid", "256.1.1.1", "::1",
    "1_000", "0x10", "1e3", "64",
]  # fmt: skip
FILES = {
    "folder": None,
    "binary.csv": b"\x00\xff\xfe" * 50,
    "nan.csv": b"chip,layers,hidden\nH100-SXM-80GB,nan,1e400\n",
    "ragged.csv": b'chip,layers,hidden\n"H100-SXM-80GB,12\n',
    "broken.json": b'{"preset": ',
    "broken.ipynb": b'{"cells": [{}]}',
}  # fmt: skip


@dataclass(frozen=True)
class Taken:
    """What a command takes: its words, and of each option or argument how it is typed."""

    words: tuple[str, ...]
    options: tuple[str, ...]
    flags: tuple[str, ...]
    places: int


def commands(command, words: tuple[str, ...] = ()) -> Iterator[Taken]:
    if not hasattr(command, "commands") or command.invoke_without_command:
        options = [p for p in command.params if p.param_type_name == "option"]
        named = [p.opts[0] for p in options if not p.is_flag]
        flags = [o for p in options if p.is_flag for o in (*p.opts, *p.secondary_opts)]
        yield Taken(words, tuple(named), tuple(flags), len(command.params) - len(options))
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


ALL = list(commands(typer.main.get_command(app)))


def drawn(dice: random.Random, taken: Taken, files: list[str]) -> list[str]:
    """A command with one to three of its options, each with a hostile value."""
    value = lambda: dice.choice(HOSTILE if dice.random() < 0.8 else files)  # noqa: E731
    words = list(taken.words)
    for option in dice.sample(taken.options, min(len(taken.options), dice.randint(1, 3))):
        words += [option, value()]
    words += dice.sample(taken.flags, min(len(taken.flags), dice.randint(0, 1)))
    words += [value() for _ in range(dice.randint(0, 2) if taken.places else 0)]
    return words + (["--no-such-option"] if dice.random() < 0.02 else [])


def is_answer(code: int, stderr: str) -> bool:
    """Done, or refused in one line; `doctor` and `build --check` may find fault (1)."""
    refused = code == 2 and stderr.startswith("error: ") and stderr.count("\n") == 1
    return (code == 0 or refused) and "Traceback" not in stderr


@pytest.fixture
def files(tmp_path, monkeypatch) -> list[str]:
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        path = tmp_path / name
        path.mkdir() if content is None else path.write_bytes(content)
    return list(FILES)


def test_every_command_and_option_is_drawn():
    assert {taken.words[0] for taken in ALL if taken.words} >= {"train", "plan", "bench", "grade"}
    assert sum(len(taken.options) for taken in ALL) > 50


def test_hostile_arguments_are_answered_in_one_sentence(files):
    dice = random.Random(0)
    with ExitStack() as replaced:
        for name, answer in WORK.items():
            replaced.enter_context(patch(name, return_value=answer))
        for number in range(DRAWS):
            words = drawn(dice, ALL[number % len(ALL)], files)
            done = minitrain(*words)
            assert is_answer(done.returncode, done.stderr), (words, done.stderr)


def test_no_option_takes_an_empty_text_or_a_path_that_cannot_be(files):
    for taken in ALL:
        for option in taken.options:
            for value in ("", "/proc/nope/nope"):
                done = minitrain(*taken.words, option, value)
                assert done.returncode == 2, (taken.words, option, value)
                assert is_answer(2, done.stderr), done.stderr


@pytest.mark.parametrize("value", ["nan", "1e400", "-1", "0.5", "[/bold]", '"'])
def test_a_hostile_cell_in_any_column_of_a_run(value, tmp_path):
    file = tmp_path / "runs.csv"
    for column in COLUMNS:
        row = {"chip": "H100-SXM-80GB", "layers": "12", "hidden": "768", column: value}
        file.write_text(f"{','.join(row)}\n{','.join(row.values())}\n")
        done = minitrain("plan", "predict", str(file))
        assert is_answer(done.returncode, done.stderr), (column, done.stderr)


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("train --lr inf", "--lr is 'inf': give a number"),
        ("train", "WORLD_SIZE is 'abc'"),
        ("lab --ip bogus.invalid", "--ip is 'bogus.invalid'"),
        ("lab --port 99999", "--port is '99999'"),
        ("lab e00_rank", "no lab is called 'e00_rank'"),
        ("build --check e77", "no lab is called 'e77'"),
        ("plan --tokens inf", "--tokens is 'inf'"),
        ("train --data /dev/zero --steps 1", "/dev/zero is neither a file nor a folder"),
        ("train --steps", "Option '--steps' requires an argument"),
        ("bench --none", "No such option: --none"),
    ],
)
def test_a_mistake_is_answered_in_one_sentence(line, answer, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if answer.startswith("WORLD_SIZE"):
        monkeypatch.setenv("RANK", "0"), monkeypatch.setenv("WORLD_SIZE", "abc")
    done = minitrain(*line.split())
    assert done.returncode == 2 and answer in done.stderr and is_answer(2, done.stderr), done.stderr
    assert done.stdout == "" and list(tmp_path.iterdir()) == []


def test_a_process_of_its_own_answers_in_the_same_way(tmp_path):
    command = [sys.executable, "-m", "minitrain", "plan", "--gpus", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2 and "--gpus is '0'" in done.stderr and is_answer(2, done.stderr)
    assert done.stdout == "" and list(tmp_path.iterdir()) == []
