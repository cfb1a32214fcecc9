"""launch from the cells of a real kernel: prints, reports by cell and line, an interrupt."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).resolve().parents[3]

CELLS = [
    """
import time, torch, psutil
from minitrain.ranks.launch import launch
def hello(group):
    print("hello")
    return group.all_reduce(torch.ones(1)).item()
list(launch(hello, ranks=2))
""",
    """
def stuck(group):
    x = torch.ones(4)
    if group.rank == 0:
        group.recv(x, source=1)
""",
    "launch(stuck, ranks=2)",
    """
def fails(group):
    if group.rank == 1:
        raise ValueError("the loss is nan")
    group.barrier()
launch(fails, ranks=2)
""",
    """
def sleeps(group):
    time.sleep(100)
launch(sleeps, ranks=2)
""",
    """
ranks = [p for p in psutil.Process().children(recursive=True) if "minitrain" in str(p.open_files())]
print(len(ranks), round(min(launch(hello, ranks=4, quiet=True).seconds for _ in range(5)), 2))
""",
]


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The output of each cell: its streams, its result, its error, as strings."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c.strip()) for c in CELLS])
    client = NotebookClient(
        notebook,
        timeout_func=lambda cell: 6 if "sleeps" in cell.source else 120,  # then: an interrupt
        interrupt_on_timeout=True,
        allow_errors=True,
        startup_timeout=120,
        resources={"metadata": {"path": str(ROOT)}},
    )
    client.execute()
    return [[text_of(output) for output in cell.outputs] for cell in notebook.cells]


def text_of(output):
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return output.get("text") or output.data["text/plain"]


def test_prints_and_results_are_in_their_cell(outputs):
    *streams, result = outputs[0]
    assert sorted("".join(streams).splitlines()) == ["[rank 0] hello", "[rank 1] hello"]
    assert result == "[2.0, 2.0]"


def test_a_deadlock_names_the_cell_and_its_line(outputs):
    [error] = outputs[2]
    assert "DeadlockError: deadlock: rank 0 waits, but rank 1 has returned" in error
    assert (
        "rank 0: waiting in recv from rank 1 of float32 [4], cell In[2], line 4: group.recv"
        in error
    )
    assert "launch.py" not in error and "Traceback" not in error


def test_an_exception_names_the_cell_and_its_line(outputs):
    [error] = outputs[3]
    assert "RankError: rank 1 raised ValueError: the loss is nan" in error
    assert "rank 0: waiting in barrier, cell In[4], line 4: group.barrier()" in error
    assert 'cell In[4], line 3: raise ValueError("the loss is nan")' in error


def test_an_interrupt_reports_and_leaves_no_rank(outputs):
    [error] = outputs[4]
    assert "KeyboardInterrupt: interrupted; no rank is left" in error
    assert "rank 1: still at work, cell In[5], line 2: time.sleep(100)" in error
    left, seconds = outputs[5][0].split()
    assert left == "0"
    assert float(seconds) < 1.5  # 0.1 s on two free cores, which the test may not have
