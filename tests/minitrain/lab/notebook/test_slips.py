"""Cells that are run before the cell that they need: one card that names it, and no traceback."""

from __future__ import annotations

import os

import nbformat
import pytest
from nbclient import NotebookClient

from minitrain.lab.notebook.server import environment
from minitrain.lab.notebook.slips import defined_under
from minitrain.paths import course_root

ALL_REDUCE = course_root() / "labs" / "e00_ranks_and_collectives.ipynb"


def ran(*cells: str, session: str = "") -> list[list]:
    """The outputs of each cell, in a kernel as `make lab` starts it."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    client = NotebookClient(notebook, allow_errors=True, timeout=60)
    client.execute(env={**os.environ, **environment(), "JPY_SESSION_NAME": session})
    return [cell.outputs for cell in notebook.cells]


def test_a_restart_and_then_a_grade_cell():
    missing, other, inner, names = ran(
        "ring = lab.grade(ring_all_reduce)",
        "nowhere_defined",
        "import json\njson.loads.__globals__['JSONDecoder'] = None\ndef f(): return lab\nf()",
        "print([name for name in dir() if name in ('slips', 'sys')])",
        session=str(ALL_REDUCE),
    )
    card, error = missing
    assert "Run another cell first" in card.data["text/plain"]
    assert "`lab`" not in card.data["text/html"] and "Run All Above" in card.data["text/plain"]
    assert len(error.traceback) == 1 and "run the cell under" in error.traceback[0]
    assert "Traceback" in "\n".join(other[0].traceback)  # no cell of the notebook defines it
    assert "run the cell under" in inner[0 if inner[0].output_type == "error" else 1].traceback[0]
    assert names[0].text.strip() == "[]"  # the learner's names are the learner's


@pytest.mark.parametrize(
    "name, heading", [("lab", True), ("ring_all_reduce", True), ("absent", False)]
)
def test_the_heading_above_the_cell_that_defines_a_name(name, heading):
    assert bool(defined_under(name, ALL_REDUCE)) == heading


def test_no_notebook_names_no_cell(tmp_path):
    assert defined_under("lab", None) == defined_under("lab", tmp_path / "absent.ipynb") == ""
