"""lab.grade in a real kernel: an error is told by cell and line, wherever the learner wrote it."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.timeout(120)

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


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What `lab.grade` shows for a function that uses a helper, then for a class."""
    root, folder = (
        str(Path(__file__).parents[1] / "course"),
        str(tmp_path_factory.mktemp("progress")),
    )
    setup = SETUP.format(root=root, folder=folder)
    grade = "print(lab.grade(running_sum))"
    cells = [
        nbformat.v4.new_code_cell(c.strip()) for c in (setup, HELPER, USES, grade, CLASS, grade)
    ]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=100).execute()
    return [cell.outputs[0].data["text/html"] for cell in (notebook.cells[3], notebook.cells[5])]


def test_a_helper_of_an_earlier_cell_is_named_by_its_cell(said):
    assert "(cell In[2], line 2, in helper: <code>return values[" in said[0]


def test_a_method_of_a_class_is_named_by_its_cell(said):
    line = "cell In[5], line 3, in __init__: <code>self.sums = values.no_such_method()</code>"
    assert line in said[1] and "ipykernel" not in said[1]
