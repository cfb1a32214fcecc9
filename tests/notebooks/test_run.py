"""Every notebook runs from top to bottom through nbval: the solutions, and the labs as they come.

Cells tagged `nbval-check-output` must print what they printed when the solution was built. The
learner's own progress is not touched.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minitrain.lab.building.masters import targets
from minitrain.paths import course_root

NOTEBOOKS = [path for target in targets() for path in (target.solution, target.lab)]
CELL_SECONDS = 120


@pytest.mark.timeout(400)
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_it_runs_from_top_to_bottom(notebook: Path, tmp_path: Path):
    done = nbval(notebook, tmp_path)
    first = done.stdout.partition(" FAILURES ")[2] or done.stdout
    assert done.returncode == 0, first[:6000] + done.stderr[-2000:]
    assert " passed" in done.stdout and "failed" not in done.stdout


@pytest.mark.timeout(200)
@pytest.mark.parametrize("source, said", [("1 / 0", "ZeroDivisionError"), ("print(2)", "output")])
def test_nbval_sees_an_error_and_a_changed_output(tmp_path: Path, source: str, said: str):
    """The runs above can fail: on an error, and on an output that is not the one recorded."""
    import nbformat

    output = nbformat.v4.new_output("stream", name="stdout", text="1\n")
    tags = {"tags": ["nbval-check-output"]}
    cell = nbformat.v4.new_code_cell(source, outputs=[output], metadata=tags, execution_count=1)
    notebook = nbformat.v4.new_notebook(
        cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "p"}}
    )
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    done = nbval(tmp_path / "wrong.ipynb", tmp_path)
    assert done.returncode == 1 and said in done.stdout


def nbval(notebook: Path, scratch: Path) -> subprocess.CompletedProcess:
    options = ["--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={CELL_SECONDS}"]
    quiet = ["-q", "-p", "no:cacheprovider", "-o", "addopts=", f"--rootdir={notebook.parent}"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *quiet, *options, str(notebook)],
        capture_output=True,
        text=True,
        cwd=course_root(),
        env={**os.environ, "XDG_DATA_HOME": str(scratch)},
    )
