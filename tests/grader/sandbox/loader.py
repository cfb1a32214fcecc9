"""Loads a submission inside the sandbox: the source of its cells, or a function sent from a
notebook.

Runs only what the exercise needs: its own cell, and from other cells the imports, definitions and
constants that it uses (their closure), so that the lab's demos cost no time. A failing statement is
noted and skipped: a typo in another cell costs nothing.

Imports neither torch nor the sandbox: code that reads submissions also uses `Cell` and `bound`.
"""

from __future__ import annotations

import ast
import io
import linecache
import pickle
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from types import ModuleType
from typing import Any, NamedTuple

MODULE = "submission"
SHELL = "get_ipython"  # called by IPython's magics and shell lines (grading/ipython_cells.py)


class Cell(NamedTuple):
    """A code cell; `whole` cells run every statement, others only the needed ones."""

    name: str
    source: str
    whole: bool


@dataclass(frozen=True)
class Solution:
    """A learner's code: the cells of a file, or a pickled function from a kernel."""

    cells: tuple[Cell, ...] = ()
    live: bytes | None = None
    sources: dict[str, str] = field(default_factory=dict)  # of `live`: file -> its text
    substitutes: dict[str, bytes] = field(default_factory=dict)  # name -> a pickled reference

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Solution:
        """Rebuilds one from its `asdict`, whose cells are plain tuples."""
        return cls(**{**fields, "cells": tuple(Cell(*cell) for cell in fields["cells"])})

    @property
    def lines(self) -> dict[str, list[str]]:
        """The learner's own lines, by the file names used in a traceback.

        A .py file becomes cells of one name, each padded with empty lines for those before it.
        """
        found: dict[str, list[str]] = {}
        texts = [(cell.name, cell.source) for cell in self.cells]
        for file, text in [*texts, *self.sources.items()]:
            pairs = zip_longest(text.split("\n"), found.get(file, []), fillvalue="")
            found[file] = [new or old for new, old in pairs]
        return found


class NoShell:
    """Replaces IPython's shell: commands do nothing and print nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **options: [] if name == "getoutput" else None


class NotDefined(Exception):
    """The submission has no function or class of that name."""


def load(solution: Solution, name: str) -> tuple[Any, list[str]]:
    """The learner's object called `name`, and failures while loading it, one line each."""
    substitutes = {key: pickle.loads(data) for key, data in solution.substitutes.items()}
    substitutes[SHELL] = NoShell
    if solution.live is not None:
        return _Unpickler(solution.live, substitutes).load(), []
    return _load_cells(solution.cells, substitutes, name)


class _Unpickler(pickle.Unpickler):
    """Restores references where the notebook's function used the result of `lab.grade`."""

    def __init__(self, data: bytes, substitutes: dict[str, Any]) -> None:
        super().__init__(io.BytesIO(data))
        self.substitutes = substitutes

    def persistent_load(self, name: str) -> Any:
        return self.substitutes[name]


def _load_cells(
    cells: Sequence[Cell], substitutes: dict[str, Any], name: str
) -> tuple[Any, list[str]]:
    module = ModuleType(MODULE)
    sys.modules[MODULE] = module
    fragments, problems = _parsed(cells)
    for fragment in closure(fragments, {name}, set(substitutes)):
        module.__dict__.update(substitutes)
        problems += _run(module.__dict__, fragment)
    module.__dict__.update(substitutes)
    if name not in module.__dict__:
        reason = f"; {problems[0]}" if problems else ""
        raise NotDefined(f"there is no `{name}` in what was handed in{reason}")
    return module.__dict__[name], problems


def _parsed(cells: Sequence[Cell]) -> tuple[list[Fragment], list[str]]:
    """The statements to run, and one line per cell that is not valid Python."""
    fragments, problems = [], []
    for file, source, is_whole in cells:
        try:
            fragments += fragments_of(file, source, is_whole)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problems.append(f"{file} is not Python: {describe(error)}")
    return fragments, problems


def _run(namespace: dict[str, Any], fragment: Fragment) -> list[str]:
    """Runs the statements of a fragment; returns failures, one line each."""
    problems = []
    for statement in fragment.statements:
        try:
            code = compile(ast.Module([statement], []), fragment.file, "exec", dont_inherit=True)
            exec(code, namespace)
        except (Exception, RecursionError) as error:
            problems.append(f"{fragment.file}, line {statement.lineno}: {describe(error)}")
    return problems


@dataclass(frozen=True)
class Fragment:
    """Statements that run together: one import, one definition, or the rest of a whole cell."""

    file: str
    statements: tuple[ast.stmt, ...]

    @property
    def binds(self) -> set[str]:
        return set().union(*map(bound, self.statements))

    @property
    def uses(self) -> set[str]:
        nodes = (node for statement in self.statements for node in ast.walk(statement))
        return {node.id for node in nodes if isinstance(node, ast.Name)}


def fragments_of(file: str, source: str, is_whole: bool) -> list[Fragment]:
    """The fragments of a cell; raises like `ast.parse`."""
    statements = [s for s in ast.parse(source, file).body if not _calls_lab(s)]
    imports = [s for s in statements if isinstance(s, (ast.Import, ast.ImportFrom))]
    rest = [s for s in statements if s not in imports]
    if is_whole:
        return [*(Fragment(file, (one,)) for one in imports), Fragment(file, tuple(rest))]
    return [Fragment(file, (statement,)) for statement in statements if _defines(statement)]


def closure(fragments: list[Fragment], wanted: set[str], given: set[str]) -> list[Fragment]:
    """The fragments that `wanted` needs, in their order; `given`: names that are already
    defined."""
    needed, chosen = set(wanted), {i for i, one in enumerate(fragments) if "*" in one.binds}
    while True:
        more = {i for i, one in enumerate(fragments) if i not in chosen and one.binds & needed}
        if not more:
            return [fragments[i] for i in sorted(chosen)]
        chosen |= more
        needed |= set().union(*(fragments[i].uses for i in more)) - given


def _defines(statement: ast.stmt) -> bool:
    """Imports, definitions, constants: plain values, or any assignment to NAMES_IN_CAPITALS."""
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if isinstance(statement, definitions):
        return True
    if not isinstance(statement, ast.Assign):
        return False
    if not all(isinstance(target, ast.Name) for target in statement.targets):
        return False
    is_constant = all(name.isupper() for name in bound(statement))
    return is_constant or not any(isinstance(node, ast.Call) for node in ast.walk(statement.value))


def _calls_lab(statement: Any) -> bool:
    return isinstance(statement, (ast.Assign, ast.Expr)) and is_lab_call(statement.value)


def bound(statement: ast.stmt) -> set[str]:
    """The names that a statement binds, as far as grading is concerned."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, ast.Assign) and not is_lab_call(statement.value):
        targets = (node for target in statement.targets for node in ast.walk(target))
        names = (node for node in targets if isinstance(node, ast.Name))
        return {node.id for node in names if isinstance(node.ctx, ast.Store)}
    if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
    return set()


def is_lab_call(value: ast.expr) -> bool:
    """True for `lab.grade(f)` and similar calls, which are not part of the solution."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    return isinstance(value.func.value, ast.Name) and value.func.value.id == "lab"


def remember(solution: Solution) -> None:
    """Registers sources, so that tracebacks and hang reports can show the learner's line."""
    for file, lines in solution.lines.items():
        linecache.cache[file] = (sum(map(len, lines)), None, [line + "\n" for line in lines], file)


LONGEST = 4000  # characters of an error message


def describe(error: BaseException) -> str:
    """`ValueError: message`, as Python prints it, on one line."""
    text = "".join(traceback.format_exception_only(type(error), error))
    return " ".join(text[:LONGEST].split())


def locate(error: BaseException, files: set[str]) -> str:
    """The learner's own line that an exception came through: (cell 3, line 4, in f: …)."""
    own = [f for f in traceback.extract_tb(error.__traceback__) if f.filename in files]
    if not own:
        return ""
    last = own[-1]
    return f" ({last.filename}, line {last.lineno}, in {last.name}: `{last.line}`)"
