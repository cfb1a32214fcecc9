"""Redraws schematics in a solution without executing it again.

Schematics are the same on any machine: when their code changes, the other cells keep their recorded
measurements.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from minitrain.lab.building.execute import execute

SCHEMATIC = re.compile(r"ideas\.(?P<name>\w+)(?:\.picture)?\((?P<values>.*)\)$")  # a cell with one
IMPORT = "from minitrain.lab import ideas"


def draw_again(solution: NotebookNode, name: str, folder: Path) -> NotebookNode:
    """A copy of the executed solution with up-to-date schematics."""
    drawn = nbformat.from_dict(solution)
    cells = [cell for cell in drawn.cells if is_schematic(cell)]
    if not cells:
        return drawn
    alone = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(IMPORT), *cells])
    _, *today = execute(alone, f"{name}, schematics", folder).cells
    for cell, again in zip(cells, today):
        cell.outputs = again.outputs
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
    return drawn


def is_schematic(cell: NotebookNode) -> bool:
    return cell.cell_type == "code" and SCHEMATIC.match(cell.source) is not None
