"""nbgrader's cell metadata, from the tags and the checks' points, so that labs work in nbgrader
unchanged.

Exercise and question cells become `solution` cells (the learner edits them); a cell that calls
`lab.grade(f)`, `lab.experiment("…", …)` or `lab.answer("…", …)` becomes a locked `grade` cell.
"""

from __future__ import annotations

import re
from pathlib import Path

from nbformat import NotebookNode

from minitrain.errors import InputError
from minitrain.lab.building.regions import BEGIN
from minitrain.lab.grading.collect import lab_names
from minitrain.lab.grading.course import load_lab

GRADED = re.compile(r"lab\.(?:grade\((\w+)\)|(?:experiment|answer)\(\s*\"([^\"]+)\")")
SCHEMA = 3


def add_grading_metadata(notebook: NotebookNode, lab: str, root: Path) -> None:
    """Marks the cells of `notebook`; every item with points is graded exactly once."""
    if lab not in lab_names(root):
        return
    points = {item.name: item.max_points for item in load_lab(lab, root).items}
    graded: list[str] = []
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type != "code":
            continue
        call = GRADED.search(cell.source)
        where = f"{lab}, cell {number}"
        if call:
            name = call[1] or call[2]
            _check_grade_cell(where, cell, name, points)
            graded.append(name)
            cell.metadata.nbgrader = _entry(f"grade-{name}", True, points=points[name])
        elif BEGIN in cell.source:
            cell.metadata.nbgrader = _entry(f"cell-{cell.id}", False)
    missing = sorted(set(points) - set(graded))
    twice = sorted({name for name in graded if graded.count(name) > 1})
    if missing or twice:
        raise InputError(
            f"{lab}: never graded: {missing}; graded twice: {twice}; each is graded once"
        )


def _check_grade_cell(where: str, cell: NotebookNode, name: str, points: dict[str, float]) -> None:
    if BEGIN in cell.source:
        raise InputError(f"{where} grades '{name}' and holds a solution region: make it two cells")
    if "grade" not in cell.metadata.get("tags", []):
        raise InputError(f"{where} grades '{name}' but has no tag 'grade'")
    if name not in points:
        raise InputError(f"{where} grades '{name}'; the lab's checks know {', '.join(points)}")


def _entry(grade_id: str, graded: bool, **fields: float) -> NotebookNode:
    """Metadata of a locked, graded cell, or of a solution that the learner edits."""
    kind = {"grade": graded, "solution": not graded, "locked": graded, "task": False}
    return NotebookNode(schema_version=SCHEMA, grade_id=grade_id, **kind, **fields)
