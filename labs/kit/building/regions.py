"""Solution regions of a master: shown in the solution notebook, filled in by the learner.

    ### BEGIN SOLUTION
    ### SOLUTION minitrain.parallel.zero.plain:reduce_unit     inserts the body of that function
    ### LAB guess = None  # your guess                         the learner's line instead of a stub
    ### END SOLUTION

A `### SOLUTION` line comes first in its region and names a function or `Class.method` of the
package, so that the course's plain version is written once: changing it changes the master, which
the drift check detects. nbgrader's own ClearSolutions removes regions.
"""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

from nbformat import NotebookNode

from minitrain.errors import InputError
from minitrain.lab.grading.submission import STUB

BEGIN, END, LAB, SOURCE = "### BEGIN SOLUTION", "### END SOLUTION", "### LAB ", "### SOLUTION "
FORMATTER = re.compile(r"  # fmt: skip$", re.MULTILINE)
FROM_PACKAGE = re.compile(rf"^( *){BEGIN}\n\1{SOURCE}([\w.]+):([\w.]+)$", re.MULTILINE)


def filled(text: str) -> str:
    """A master's text with each `### SOLUTION module:function` line replaced by that code, and
    without formatter marks."""

    def code(mark: re.Match[str]) -> str:
        margin, module, name = mark.groups()
        return f"{margin}{BEGIN}\n{indent(body_of(module, name), margin)}"

    return FORMATTER.sub("", FROM_PACKAGE.sub(code, text))


def body_of(module: str, name: str) -> str:
    """The lines of a function below its docstring, comments included; without importing
    anything."""
    source = _source(module)
    node: Any = ast.parse(source)
    for part in name.split("."):
        inside = getattr(node, "body", [])
        node = next((n for n in inside if getattr(n, "name", None) == part), None)
    if not isinstance(node, ast.FunctionDef):
        raise InputError(f"'{SOURCE}{module}:{name}': {module} has no function {name}")
    start = node.body[0].end_lineno if ast.get_docstring(node) else node.body[0].lineno - 1
    return dedent("\n".join(source.splitlines()[start : node.end_lineno]))


def _source(module: str) -> str:
    try:
        spec = find_spec(module)
    except ModuleNotFoundError:
        spec = None
    if spec is None or spec.origin is None:
        raise InputError(f"'{SOURCE}{module}:…': there is no module {module}")
    return Path(spec.origin).read_text(encoding="utf-8")


def check_regions(where: str, cell: NotebookNode) -> None:
    """InputError for regions that do not pair, are missing in an exercise, or were not filled."""
    lines = [line.strip() for line in cell.source.splitlines()]
    regions = [line for line in lines if line in (BEGIN, END)]
    if regions != [BEGIN, END] * (len(regions) // 2):
        raise InputError(f"{where}: '{BEGIN}' and '{END}' do not pair: {regions}")
    if "exercise" in cell.metadata.get("tags", []) and not regions:
        raise InputError(f"{where} is an exercise without '{BEGIN}' … '{END}'")
    left = [line for line in lines if line.startswith(SOURCE)]
    if left:
        raise InputError(
            f"{where}: '{left[0]}' is not filled in: write it as '{SOURCE}module:function', right "
            f"below '{BEGIN}' and as far from the margin"
        )


def unmarked(source: str) -> str:
    """The source without the lines that are for learners or mark a region."""
    lines = source.splitlines()
    return "\n".join(line for line in lines if not line.lstrip().startswith((BEGIN, END, LAB)))


def cleared(cell: NotebookNode) -> str:
    """The cell's source with each region replaced by its own `### LAB` lines, or the stub."""
    pieces = re.split(rf"(?<={END})", cell.source)  # one region per piece, each with its own stub
    return "".join(_cleared(piece, cell) if BEGIN in piece else piece for piece in pieces)


def _cleared(piece: str, cell: NotebookNode) -> str:
    from nbgrader.preprocessors import ClearSolutions

    own = [line.split(LAB, 1)[1] for line in piece.splitlines() if LAB in line]
    clear = ClearSolutions(code_stub={"python": "\n".join(own) or STUB})
    part = NotebookNode(cell_type="code", source=piece, metadata=cell.metadata)
    resources: dict[str, Any] = {"language": "python"}
    return clear.preprocess_cell(part, resources, 0)[0].source
