"""The first line, the server's command, Colab's set-up, the doctor, the map."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from minitrain.lab.building.colab_cells import FETCH
from minitrain.lab.drawing.course_map import also_after, alt_text, course_map, placed
from minitrain.lab.notebook import colab, health
from minitrain.lab.notebook.overview import overview_card, standings
from minitrain.lab.notebook.progress import Progress
from minitrain.lab.notebook.server import SETTINGS
from minitrain.paths import course_root


def test_every_setting_is_one_that_jupyterlab_knows():
    schemas = Path(sys.prefix) / "share/jupyter/lab/schemas"
    overrides = json.loads((SETTINGS / "overrides.json").read_text())
    for plugin, settings in overrides.items():
        extension, name = plugin.split(":")
        schema = json.loads((schemas / extension / f"{name}.json").read_text())
        assert set(settings) <= set(schema["properties"]), plugin
    assert overrides["@jupyterlab/notebook-extension:tracker"]["autoStartDefaultKernel"] is True


def test_colab_installs_what_is_missing_and_never_torch():
    text = '[project]\ndependencies = [\n    "torch>=2.6",\n    "numpy>=1",\n    "typer>=0.12",\n    "not-there>=3",\n]\n'
    assert colab.missing_packages(text) == ["not-there>=3"]
    real = (course_root() / "pyproject.toml").read_text()
    assert "torch>=2.6" in real and colab.missing_packages(real) == []


@pytest.mark.parametrize("given", ["a release", "a clone"])
def test_colabs_cell_fetches_the_course_once_and_finds_it(tmp_path, given):
    """In a process that has neither the course nor its packages on the path."""
    course = tmp_path / "course-1.0"
    shutil.copytree(course_root() / "labs/kit/notebook", course / "labs/kit/notebook")
    (course / "minitrain").mkdir()
    (course / "minitrain/here.py").write_text("")
    (course / "pyproject.toml").write_text('dependencies = [\n    "torch>=2.6",\n]\n')
    archive = shutil.make_archive(str(tmp_path / "release"), "zip", tmp_path, "course-1.0")
    address = Path(archive).as_uri() if given == "a release" else str(course)
    cell = FETCH.format(address=address).replace("/content", str(tmp_path / "content"))
    colab_says = "get_ipython = lambda: 'google.colab._shell.Shell'\n"
    check = "\nimport os, minitrain.here\nprint(os.path.basename(os.getcwd()))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", colab_says + (cell + "\n") * 2 + check],
        text=True,
        capture_output=True,
    )
    assert done.stdout == "labs\n", done.stderr


def test_colab_says_why_it_cannot():
    with pytest.raises(RuntimeError, match="failed: no network"):
        colab._run(sys.executable, "-c", "raise SystemExit('no network')")


def test_the_doctor_tells_a_state_and_a_remedy_for_all():
    lines = list(health.examine())
    assert [line.name for line in lines][:2] == ["Python", "torch"] and 9 <= len(lines) <= 12
    assert all(line.state == "ok" or line.remedy for line in lines)
    assert next(line for line in lines if line.name == "ranks").state == "ok"


def test_a_check_that_breaks_is_a_failure_with_its_words(monkeypatch):
    def broken():
        raise OSError("no such device\nsecond line")

    monkeypatch.setattr(health, "CHECKS", {"disk": broken})
    assert list(health.examine()) == [
        health.Finding("disk", "fail", "OSError: no such device", "run 'make setup' again")
    ]


def test_the_map_goes_from_what_comes_before():
    """The labs' own first cells say what that is; no two boxes share a place."""
    labs = standings()
    places = placed(labs)
    assert len(set(places.values())) == len(labs)
    for lab in labs:
        assert all(places[name][1] < places[lab.name][1] for name in lab.before), lab.name
    assert [lab.name for lab in labs if not lab.before] == ["e00_ranks_and_collectives"]
    also = {lab.short: others for lab in labs if (others := also_after(lab, labs))}
    assert also == {"e07": ["e05"], "e15": ["e10"]}
    assert "e02f after e02c" in alt_text(labs) and alt_text(labs)[:20] in course_map(labs).text


def test_the_map_shows_points_and_what_is_next(course, tmp_path):
    cell = nbformat.v4.new_markdown_cell("# e90 · Sums\n\n5 minutes")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), course / "labs/e90_sums.ipynb")
    progress = Progress("e90_sums", tmp_path)
    progress.score("running_sum", 6, 6)
    card = overview_card(standings(course, tmp_path))
    assert "6 of 10 points" in card.text and "begun" in card.text
    assert "Next: e90 · Sums (e90_sums.ipynb), 2 to go, first: Growth of the sum" in card.text
    assert '<a href="e90_sums.ipynb">e90 · Sums</a>' in card.html and "5 min" in card.html
    progress.score("growth", 3, 3), progress.score("largest", 1, 1)
    assert "Everything is done" in overview_card(standings(course, tmp_path)).text
