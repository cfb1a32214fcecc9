"""Reads a submission: a notebook, or a Python file, plain or in cells (`# %%`).

None of it runs here. The cells go to the sandbox as text; a notebook's exercise cells run in full,
the others only for imports, definitions and constants (see `sandbox/loader.py`). Recorded tables
and answers are read from its outputs, as JSON.
"""

from __future__ import annotations

import ast
import json
import os
import re
import stat
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from minitrain.errors import InputError
from minitrain.lab.grading.ipython_cells import as_python
from minitrain.lab.sandbox.loader import Cell, bound

RECORDED = "application/vnd.minitrain+json"  # the MIME type of recorded data
MAX_BYTES = 64 * 2**20
MAX_CELLS = 2000
MAX_SOURCE = 2**19  # characters of code; parsing may take thousands of bytes per character
MAX_VALUES = 2 * 10**6  # in JSON; each takes over a hundred bytes as a Python object
LAB_CALL = re.compile(r"""\bLab\(\s*["']([\w-]+)["']""")
STUB = "# YOUR CODE HERE\n..."  # what a lab has in place of a solution
UNFILLED = re.compile(r"\n".join(rf"^ *{re.escape(line)} *$" for line in STUB.split("\n")), re.M)
CELL_MARK = re.compile(r"^# ?%%(.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Submission:
    """A submitted file, before any of it ran."""

    path: Path
    cells: tuple[Cell, ...]
    lab: str | None = None  # as stated in the file
    recorded: dict[str, dict[str, Any]] = field(default_factory=dict)  # kind -> name -> value

    def defines(self, name: str) -> bool:
        """True where a cell defines or assigns `name`."""
        return any(name in bound(statement) for _, statement in self._statements)

    def definition(self, name: str) -> str | None:
        """The last definition of `name` as a syntax tree, without comments and layout."""
        found = [statement for _, statement in self._statements if name in bound(statement)]
        return ast.dump(found[-1]) if found else None

    def is_stub(self, name: str) -> bool:
        """True where the function's last definition is still the lab's stub."""
        found = [(cell, s) for cell, s in self._statements if name in bound(s)]
        return bool(found) and _is_stub(*found[-1])

    @cached_property
    def _statements(self) -> list[tuple[Cell, ast.stmt]]:
        """The statements of cells that are valid Python; the sandbox reports errors in others."""
        found: list[tuple[Cell, ast.stmt]] = []
        for cell in self.cells:
            with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
                found += [(cell, statement) for statement in ast.parse(cell.source).body]
        return found


def read_submission(path: Path) -> Submission:
    """A `.ipynb` or `.py` file; InputError where it is missing or its content does not match its
    name."""
    if path.suffix not in (".ipynb", ".py"):
        raise InputError(f"{path} is neither a notebook (.ipynb) nor Python (.py)")
    try:
        text = handed_in(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8: save it again") from error
    if path.suffix == ".ipynb":
        return _read_notebook(path, text)
    check_cells(path, len(CELL_MARK.findall(text)), len(text))
    return read_python(path, text)


def check_cells(path: Path, count: int, characters: int = 0) -> None:
    """InputError for an implausible amount of code."""
    if count > MAX_CELLS:
        raise InputError(f"{path} has {count} cells, more than {MAX_CELLS}: hand in the lab itself")
    if characters > MAX_SOURCE:
        raise InputError(
            f"{path} has {characters} characters of code, more than {MAX_SOURCE}: hand in the lab "
            "itself, without data in its cells"
        )


def check_values(path: Path, text: str) -> None:
    """InputError for JSON with too many values for memory, before parsing."""
    count = sum(map(text.count, ",[{"))  # some of them within strings
    if count > MAX_VALUES:
        raise InputError(
            f"{path} has {count / 1e6:.0f} million values, more than {MAX_VALUES / 1e6:.0f}: "
            "clear the outputs of the large cells and save it again"
        )


def handed_in(path: Path) -> bytes:
    """A file's bytes; InputError for a link, which may lead to another's work, for a folder or a
    pipe, and for a file over MAX_BYTES, all before reading it."""
    try:
        mode = path.lstat().st_mode
        if not stat.S_ISREG(mode):
            what = "a link" if stat.S_ISLNK(mode) else "no file"
            raise InputError(f"{path} is {what}: hand in the notebook itself")
        with open(path, "rb", opener=_no_link) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise InputError(
                    f"{path} has {size / 2**20:.0f} MB, more than {MAX_BYTES >> 20}: "
                    "clear the outputs of the large cells and save it again"
                )
            return file.read(MAX_BYTES)
    except FileNotFoundError:
        words = "give a notebook (.ipynb), a .py file or a folder"
        raise InputError(f"{path} is not there: {words}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _no_link(path: str, flags: int) -> int:
    """Opens like `open`, but fails if a link or pipe has replaced the file meanwhile."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _read_notebook(path: Path, text: str) -> Submission:
    check_values(path, text)

    import nbformat  # here, to save a lab's first line a second

    try:
        with warnings.catch_warnings():  # about cell ids, which may be arbitrarily long
            warnings.simplefilter("ignore")
            notebook = nbformat.reads(text, as_version=4)
        cells = list(_code_cells(notebook))
        named = notebook.metadata.get("minitrain", {}).get("lab")
    except Exception as error:  # nbformat may raise anything on a damaged file
        reason = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
        raise InputError(
            f"{path} is not a notebook ({reason}): open it in JupyterLab and save it again"
        ) from error
    check_cells(path, len(cells), sum(len(cell.source) for cell in cells))
    lab = named if isinstance(named, str) else _lab_call(cell.source for cell in cells)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return Submission(path, tuple(cells), lab, _recorded(outputs))


def _code_cells(notebook: Any) -> Iterator[Cell]:
    number = 0
    for cell in notebook.cells:
        if cell.cell_type == "code":
            number += 1
            tags = cell.get("metadata", {}).get("tags", [])
            source = as_python(str(cell.source))
            yield Cell(_cell_name(source, number), source, "exercise" in tags)


def _cell_name(source: str, number: int) -> str:
    """A cell's name: its definition's, since cells have no numbers until run."""
    defined = re.search(r"^(?:def|class) (\w+)", source, re.MULTILINE)
    return f"cell of {defined[1]}" if defined else f"code cell {number}"


def read_python(path: Path, text: str) -> Submission:
    """A Python file of that text: one cell, or several where it has `# %%` marks."""
    marks = list(CELL_MARK.finditer(text))
    if not marks:
        return Submission(path, (Cell(path.name, as_python(text), True),), _lab_call([text]))
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    cells = [Cell(f"{path.name} head", text[: marks[0].start()], False)]
    for mark, end in zip(marks, ends):
        if "[markdown]" not in mark[1] and "[md]" not in mark[1]:
            line = text.count("\n", 0, mark.end())
            source = "\n" * (line + 1) + text[mark.end() + 1 : end]  # the file's own line numbers
            cells.append(Cell(path.name, as_python(source), '"exercise"' in mark[1]))
    return Submission(path, tuple(cells), _lab_call(cell.source for cell in cells))


def _lab_call(sources: Iterable[str]) -> str | None:
    calls = (LAB_CALL.search(source) for source in sources)
    return next((call[1] for call in calls if call), None)


def _recorded(outputs: list[Any]) -> dict[str, dict[str, Any]]:
    """{"experiment": {name: rows}, "answer": {name: value}}: the last of each name counts."""
    found: dict[str, dict[str, Any]] = {}
    for output in outputs:
        data = output.get("data", {}) if isinstance(output, dict) else {}
        record = data.get(RECORDED)
        if isinstance(record, str):
            record = json.loads(record)
        if isinstance(record, dict) and {"kind", "name", "value"} <= set(record):
            found.setdefault(str(record["kind"]), {})[str(record["name"])] = record["value"]
    return found


def _is_stub(cell: Cell, statement: ast.stmt) -> bool:
    """True where the lab's stub mark remains, or only a docstring and `pass`."""
    if not isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return False
    lines = cell.source.splitlines()[statement.lineno - 1 : statement.end_lineno]
    is_empty = isinstance(statement, ast.FunctionDef) and all(map(_says_nothing, statement.body))
    return is_empty or holds_stub("\n".join(lines))


def holds_stub(source: str) -> bool:
    """True if the lab's stub mark is still in this source."""
    return UNFILLED.search(source) is not None


def _says_nothing(line: ast.stmt) -> bool:
    if isinstance(line, ast.Raise) and line.exc is not None:
        raised = line.exc.func if isinstance(line.exc, ast.Call) else line.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return isinstance(line, ast.Pass) or (
        isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    )
