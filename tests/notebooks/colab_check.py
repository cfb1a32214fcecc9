"""`make colab-check`: what Colab does with a notebook of a release, up to its first grade card.

A fresh Python has of the course's packages only those that Colab has and that may not be replaced;
the course comes as the .zip of a release; IPython says that it is Colab's. The first cell fetches,
the setup cell imports, and the first exercise, solved, is graded, in e00 and e06.

    python tests/notebooks/colab_check.py FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nbformat

from minitrain.lab.building.colab_cells import FETCH
from minitrain.paths import course_root

LABS = ("e00_ranks_and_collectives", "e06_lora")
THERE = ("torch==2.13.0", "numpy", "ipykernel", "nbclient")  # on Colab before the first cell
COLAB = """\
shell = type(get_ipython())
shell.__module__ = "google.colab._shell"
assert "google.colab" in str(get_ipython())"""
RUN = """\
import sys, nbclient, nbformat
notebook = nbformat.read(sys.argv[1], as_version=4)
nbclient.NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
print("\\n".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in shown))"""


def main(scratch: Path) -> None:
    scratch.mkdir(parents=True, exist_ok=True)
    python = scratch / "python" / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", str(python.parents[1]))
        run(str(python), "-m", "pip", "install", "--quiet", *THERE)
    release = scratch / "course.zip"
    archive = ["git", "archive", "--format", "zip", "--prefix", "course/", "-o", str(release)]
    run(*archive, "HEAD", cwd=course_root())
    for lab in LABS:
        path = scratch / f"{lab}.ipynb"
        notebook, points = until_first_grade(lab, release, scratch)
        nbformat.write(notebook, path)
        said = run(str(python), "-c", RUN, str(path), cwd=scratch, PATH=str(python.parent))
        assert said.rstrip().endswith(f"\n{points}"), f"{lab}: not {points} points: {said[-900:]}"
        print(f"{lab}: fetched, imported, {points} points for its first exercise")


def until_first_grade(lab: str, release: Path, scratch: Path) -> tuple[nbformat.NotebookNode, str]:
    """The solution's code up to its first card, behind the cell that fetches; the card's points."""
    whole = nbformat.read(course_root() / "solutions" / f"{lab}.ipynb", as_version=4)
    cells = [cell for cell in whole.cells if cell.cell_type == "code"]
    graded = ["grade" in cell.metadata.get("tags", []) for cell in cells]
    fetch = FETCH.format(address=release.as_uri()).replace("/content", str(scratch))
    new = nbformat.v4.new_code_cell
    own = cells[: graded.index(True) + 1]
    (card,) = (output for output in own[-1].outputs if "data" in output)
    sources = [COLAB, fetch, *(cell.source for cell in own)]
    notebook = nbformat.v4.new_notebook(cells=[new(source) for source in sources])
    return notebook, card.data["text/plain"]


def run(*command: str, cwd: Path | None = None, **environment: str) -> str:
    """Its output; a failure shows the end of both of its streams."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env={**kept, **environment}
    )
    assert done.returncode == 0, f"{command[:4]}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
