"""Builds the executed solution and the learner's lab of a master (`solutions/eXX.py`, py:percent).

    solutions/eXX.py ── read ──> notebook ── execute ──> solutions/eXX.ipynb   with outputs
                                    └── for_learners ──> labs/eXX.ipynb        stubs, no outputs

Ids come from the content, nbgrader's metadata from the tags and the checks' points; regions.py
handles solution regions. Only changed code and schematics are executed again.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from minitrain.errors import InputError, unknown_name
from minitrain.lab.building.colab_cells import add_colab
from minitrain.lab.building.grading_metadata import add_grading_metadata
from minitrain.lab.building.regions import BEGIN, check_regions, cleared, filled, unmarked
from minitrain.paths import course_root

TAGS = {
    *("setup", "exercise", "grade", "experiment", "question", "hint", "solution"),
    *("picture", "folded", "nbval-check-output", "nbval-skip", "raises-exception"),
}
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
IMAGE = re.compile(r'src="data:image/png;base64,([^"]+)"')


@dataclass(frozen=True)
class Target:
    """One master and the two notebooks that are made from it."""

    name: str
    root: Path

    @property
    def master(self) -> Path:
        return self.root / "solutions" / f"{self.name}.py"

    @property
    def solution(self) -> Path:
        return self.root / "solutions" / f"{self.name}.ipynb"

    @property
    def lab(self) -> Path:
        return self.root / "labs" / f"{self.name}.ipynb"

    @property
    def picture(self) -> Path:
        return self.root / "labs" / "pictures" / f"{self.name}.png"


def targets(names: list[str] | None = None, root: Path | None = None) -> list[Target]:
    """The masters with these names, or all; InputError with the nearest for an unknown one."""
    root = root or course_root()
    known = {path.stem for path in (root / "solutions").glob("*.py")}
    wanted = [Path(name).stem for name in names or sorted(known)]
    for name in wanted:
        if name not in known:
            raise unknown_name("lab", name, known)
    return [Target(name, root) for name in wanted]


def read_master(target: Target) -> NotebookNode:
    """The whole notebook, solutions included, with stable ids and all metadata, not executed."""
    import jupytext

    text = filled(target.master.read_text(encoding="utf-8"))
    notebook = jupytext.reads(text, fmt="py:percent")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    notebook.metadata = NotebookNode(
        kernelspec=NotebookNode(KERNEL),
        language_info=NotebookNode(name="python"),
        minitrain=NotebookNode(lab=target.name, source=digest),
    )
    setup_first(notebook)
    add_colab(notebook, target.name, target.root)
    seen: dict[str, int] = {}
    for number, cell in enumerate(notebook.cells, start=1):
        tags = cell.metadata.get("tags", [])
        _check_cell(target, number, cell, tags)
        cell.metadata = NotebookNode(tags=tags) if tags else NotebookNode()
        if "folded" in tags:  # collapsed to one line, in JupyterLab and on Colab
            cell.metadata.update(jupyter=NotebookNode(source_hidden=True), cellView="form")
        cell.id = _stable_id(cell, seen)
    add_grading_metadata(notebook, target.name, target.root)
    return notebook


def setup_first(notebook: NotebookNode) -> None:
    """Moves a lab's closing picture from its title below the setup cell, which is then seen at once
    on a small screen."""
    title, setup = notebook.cells[0], notebook.cells[1:2]
    text, mark, picture = title.source.partition("\n\n![")
    if mark and any("exercise" in cell.metadata.get("tags", []) for cell in notebook.cells):
        assert "setup" in setup[0].metadata.get("tags", []), "the setup cell follows the title"
        title.source = text
        notebook.cells.insert(2, nbformat.v4.new_markdown_cell(mark.strip() + picture))


def _check_cell(target: Target, number: int, cell: NotebookNode, tags: list[str]) -> None:
    where = f"{target.master.name}, cell {number}"
    unknown = sorted(set(tags) - TAGS)
    if unknown:
        raise InputError(f"{where}: tag {unknown[0]} is not known; use {', '.join(sorted(TAGS))}")
    check_regions(where, cell)


def _stable_id(cell: NotebookNode, seen: dict[str, int]) -> str:
    """An id from the source, equal in every build; repeats get a number."""
    digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:8]
    seen[digest] = seen.get(digest, 0) + 1
    return digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def for_learners(notebook: NotebookNode) -> NotebookNode:
    """The lab: solution cells dropped, solution regions replaced by a stub, no outputs."""
    lab = nbformat.from_dict(notebook)
    lab.cells = [cell for cell in lab.cells if "solution" not in cell.metadata.get("tags", [])]
    for cell in lab.cells:
        if BEGIN in cell.source:
            cell.source = cleared(cell)
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return lab


def as_solution(notebook: NotebookNode) -> NotebookNode:
    """The notebook as `solutions/` has it: without marks, and with a title that says so."""
    if not any("exercise" in cell.metadata.get("tags", []) for cell in notebook.cells):
        return notebook
    solution, name = nbformat.from_dict(notebook), notebook.metadata.minitrain.lab
    title, _, rest = notebook.cells[0].source.partition("\n")
    note = f"> This is the solution; you work in [labs/{name}.ipynb](../labs/{name}.ipynb)."
    solution.cells[0].source = f"{title} · solution\n\n{note}\n{rest}"
    for cell in solution.cells:
        if cell.cell_type == "code":
            cell.source = unmarked(cell.source)
    return solution


def drift(target: Target) -> Iterator[str]:
    """Differences between a master and its two notebooks; outputs are not compared."""
    master = read_master(target)
    for path, wanted in (
        (target.lab, for_learners(master)),
        (target.solution, as_solution(master)),
    ):
        place = path.relative_to(target.root)
        if not path.is_file():
            yield f"{place} is not there"
            continue
        found = nbformat.read(path, as_version=4)
        number = _first_difference(found, wanted)
        if number is not None:
            yield f"{place} differs from {target.master.relative_to(target.root)} {number}"


def _first_difference(found: NotebookNode, wanted: NotebookNode) -> str | None:
    for number, (one, other) in enumerate(zip(found.cells, wanted.cells), start=1):
        if _fixed_part(one) != _fixed_part(other):
            return f"from cell {number} on"
    if len(found.cells) != len(wanted.cells):
        return f"in the number of cells: {len(found.cells)} against {len(wanted.cells)}"
    return None if found.metadata == wanted.metadata else "in its metadata"


def _fixed_part(cell: NotebookNode) -> tuple[Any, ...]:
    return cell.id, cell.cell_type, cell.source, cell.metadata


def with_outputs(target: Target, notebook: NotebookNode) -> NotebookNode | None:
    """The notebook with the outputs of its last execution; None if its code has changed since.

    notebook: as `as_solution` makes it.
    """
    if not target.solution.is_file():
        return None
    found = [c for c in nbformat.read(target.solution, as_version=4).cells if c.cell_type == "code"]
    same = nbformat.from_dict(notebook)
    cells = [cell for cell in same.cells if cell.cell_type == "code"]
    if [cell.source for cell in cells] != [cell.source for cell in found]:
        return None
    for cell, ran in zip(cells, found):
        if ran.source and not ran.execution_count:
            return None
        cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
    return same


def write_picture(solution: NotebookNode, target: Target) -> None:
    """The figure of the cell tagged `picture`, for the lab's title and the map of the course."""
    cells = [cell for cell in solution.cells if "picture" in cell.metadata.get("tags", [])]
    found = [
        image
        for cell in cells
        for output in cell.outputs
        for image in IMAGE.findall(output.get("data", {}).get("text/html", ""))
    ]
    if cells and not found:
        raise InputError(
            f"{target.name}: the cell tagged 'picture' shows none; use show.figure or its like"
        )
    if found:
        target.picture.parent.mkdir(exist_ok=True)
        target.picture.write_bytes(base64.b64decode(found[0]))


def write(notebook: NotebookNode, path: Path) -> None:
    """Writes valid, sorted JSON with a final newline; an unchanged file is not touched."""
    nbformat.validate(notebook)
    text = nbformat.writes(notebook) + "\n"
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
