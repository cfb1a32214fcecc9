"""Loads a submission inside the sandbox: the text of its cells, or a function sent from a notebook.

Only what the exercise needs is run: its own cell, and of other cells the imports, definitions and
constants that it uses (their closure), so that a demo of the lab costs no time. A statement that
fails is noted and the next one runs: a typo in another cell costs nothing.

Imports neither torch nor the sandbox: who reads a file to hand in uses `Cell` and `bound` too.
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
SHELL = "get_ipython"  # what IPython's magics and shell lines call (grading/ipython_cells.py)


class Cell(NamedTuple):
    """A code cell; `whole` cells run every statement, of others only what is needed."""

    name: str
    source: str
    whole: bool


@dataclass(frozen=True)
class Solution:
    """A learner's code: the cells of a file, or a function as a kernel had it, pickled."""

    cells: tuple[Cell, ...] = ()
    live: bytes | None = None
    sources: dict[str, str] = field(default_factory=dict)  # of `live`: file -> its text
    substitutes: dict[str, bytes] = field(default_factory=dict)  # name -> a pickled reference

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Solution:
        """Rebuilds one from its `asdict`, in which cells are plain tuples."""
        return cls(**{**fields, "cells": tuple(Cell(*cell) for cell in fields["cells"])})

    @property
    def lines(self) -> dict[str, list[str]]:
        """The learner's own lines, by the names that their files have in a traceback.

        A .py file comes as cells of one name, each with empty lines in place of those before it.
        """
        found: dict[str, list[str]] = {}
        texts = [(cell.name, cell.source) for cell in self.cells]
        for file, text in [*texts, *self.sources.items()]:
            pairs = zip_longest(text.split("\n"), found.get(file, []), fillvalue="")
            found[file] = [new or old for new, old in pairs]
        return found


class NoShell:
    """In the place of IPython's shell: a command prints nothing, and nothing is run."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *given, **options: [] if name == "getoutput" else None


class NotDefined(Exception):
    """The submission has no function or class of that name."""


def load(solution: Solution, name: str) -> tuple[Any, list[str]]:
    """The learner's object called `name`, and what failed on the way to it, one line each."""
    substitutes = {key: pickle.loads(data) for key, data in solution.substitutes.items()}
    substitutes[SHELL] = NoShell
    if solution.live is not None:
        return _Unpickler(solution.live, substitutes).load(), []
    return _load_cells(solution.cells, substitutes, name)


class _Unpickler(pickle.Unpickler):
    """Puts references back where the notebook's function used what `lab.grade` had returned."""

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
    """The statements to run, and, a line each, the cells that are no Python."""
    fragments, problems = [], []
    for file, source, is_whole in cells:
        try:
            fragments += fragments_of(file, source, is_whole)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            problems.append(f"{file} is not Python: {describe(error)}")
    return fragments, problems


def _run(namespace: dict[str, Any], fragment: Fragment) -> list[str]:
    """Runs the statements of a fragment; what failed, one line each."""
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
    """The fragments of a cell; raises what `ast.parse` raises."""
    statements = [s for s in ast.parse(source, file).body if not _calls_lab(s)]
    imports = [s for s in statements if isinstance(s, (ast.Import, ast.ImportFrom))]
    rest = [s for s in statements if s not in imports]
    if is_whole:
        return [*(Fragment(file, (one,)) for one in imports), Fragment(file, tuple(rest))]
    return [Fragment(file, (statement,)) for statement in statements if _defines(statement)]


def closure(fragments: list[Fragment], wanted: set[str], given: set[str]) -> list[Fragment]:
    """The fragments that `wanted` needs, in their order; the names `given` come from elsewhere."""
    needed, chosen = set(wanted), {i for i, one in enumerate(fragments) if "*" in one.binds}
    while True:
        more = {i for i, one in enumerate(fragments) if i not in chosen and one.binds & needed}
        if not more:
            return [fragments[i] for i in sorted(chosen)]
        chosen |= more
        needed |= set().union(*(fragments[i].uses for i in more)) - given


def _defines(statement: ast.stmt) -> bool:
    """Imports, definitions, constants: plain values, or NAMES_IN_CAPITALS whatever makes them."""
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
    """The names that a statement gives a value, as far as grading is concerned."""
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
    """`lab.grade(f)` and its like: the notebook's business, not part of the solution."""
    if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute)):
        return False
    return isinstance(value.func.value, ast.Name) and value.func.value.id == "lab"


def remember(solution: Solution) -> None:
    """So that a traceback, or the report of a hang, can show the learner's line."""
    for file, lines in solution.lines.items():
        linecache.cache[file] = (sum(map(len, lines)), None, [line + "\n" for line in lines], file)


LONGEST = 4000  # characters of an error that anybody reads


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
