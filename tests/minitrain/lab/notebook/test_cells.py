"""In a real kernel: a cell that is run too early names the one that it needs, an error its cell."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from minitrain.lab.notebook.server import environment
from minitrain.lab.notebook.slips import defined_under
from minitrain.paths import course_root

pytestmark = pytest.mark.timeout(120)
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


# --- lab.grade ---

SETUP = """
import torch
from pathlib import Path
from minitrain.lab import Lab
lab = Lab("e90_sums", root=Path({root!r}), progress_folder=Path({folder!r}))
"""
HELPER = """
def helper(values):
    return values["no such key"]
"""
USES = """
def running_sum(values):
    return helper(values)
"""
CLASS = """
class running_sum:
    def __init__(self, values):
        self.sums = values.no_such_method()
"""


def test_an_error_is_told_by_cell_and_line_wherever_the_learner_wrote_it(tmp_path):
    """In a helper of an earlier cell, and in a method of a class."""
    root = str(Path(__file__).parents[1] / "course")
    setup, grade = SETUP.format(root=root, folder=str(tmp_path)), "print(lab.grade(running_sum))"
    outputs = ran(*(c.strip() for c in (setup, HELPER, USES, grade, CLASS, grade)))
    helper, method = (outputs[cell][0].data["text/html"] for cell in (3, 5))
    assert "(cell In[2], line 2, in helper: <code>return values[" in helper
    line = "cell In[5], line 3, in __init__: <code>self.sums = values.no_such_method()</code>"
    assert line in method and "ipykernel" not in method
