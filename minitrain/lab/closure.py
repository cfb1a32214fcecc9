"""Which statements of a submission one exercise needs: its own, and what those use, and so on.

So a run imports no plotting library for an exercise that draws nothing, and what is written in
another exercise's cell costs that other exercise only.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from minitrain.lab.submission import bound, is_lab_call


@dataclass(frozen=True)
class Unit:
    """Statements that run together: an import, an exercise cell without its imports, or one

    definition of another cell.
    """

    file: str
    statements: tuple[ast.stmt, ...]

    @property
    def binds(self) -> set[str]:
        return set().union(*map(bound, self.statements))

    @property
    def uses(self) -> set[str]:
        nodes = (node for statement in self.statements for node in ast.walk(statement))
        return {node.id for node in nodes if isinstance(node, ast.Name)}


def units_of(file: str, source: str, is_whole: bool) -> list[Unit]:
    """The units of a cell; raises what `ast.parse` raises."""
    statements = [s for s in ast.parse(source, file).body if not _calls_lab(s)]
    imports = [s for s in statements if isinstance(s, (ast.Import, ast.ImportFrom))]
    rest = [s for s in statements if s not in imports]
    if is_whole:
        return [*(Unit(file, (one,)) for one in imports), Unit(file, tuple(rest))]
    return [Unit(file, (statement,)) for statement in statements if _defines(statement)]


def closure(units: list[Unit], wanted: set[str], given: set[str]) -> list[Unit]:
    """The units that `wanted` needs, in their order; the names `given` come from elsewhere."""
    needed, chosen = set(wanted), {i for i, unit in enumerate(units) if "*" in unit.binds}
    while True:
        more = {i for i, unit in enumerate(units) if i not in chosen and unit.binds & needed}
        if not more:
            return [units[i] for i in sorted(chosen)]
        chosen |= more
        needed |= set().union(*(units[i].uses for i in more)) - given


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
