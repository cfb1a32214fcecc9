"""Every lab runs from top to bottom as it comes, before anything is filled in."""

from __future__ import annotations

import nbformat
import pytest

from minitrain.lab.build import targets

from .nbval import check_runs, nbval

NAMES = {target.lab.stem: target.lab for target in targets()}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_from_top_to_bottom(name, tmp_path):
    check_runs(NAMES[name], tmp_path)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("source, said", [("1 / 0", "ZeroDivisionError"), ("print(2)", "output")])
def test_nbval_sees_an_error_and_a_changed_output(tmp_path, source: str, said: str):
    """The runs above can fail: on an error, and on an output that is not the one recorded."""
    output = nbformat.v4.new_output("stream", name="stdout", text="1\n")
    tags = {"tags": ["nbval-check-output"]}
    cell = nbformat.v4.new_code_cell(source, outputs=[output], metadata=tags, execution_count=1)
    notebook = nbformat.v4.new_notebook(
        cells=[cell], metadata={"kernelspec": {"name": "python3", "display_name": "p"}}
    )
    nbformat.write(notebook, tmp_path / "wrong.ipynb")
    done = nbval(tmp_path / "wrong.ipynb", tmp_path)
    assert done.returncode == 1 and said in done.stdout
