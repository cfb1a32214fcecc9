"""Mutants of the course's own solutions: one small change each, made anew in every run.

A change is an expression or a statement of an exercise's solution region in the place of another:
`a + b -> a - b`, `x.clone() -> x`, `group.barrier() -> pass`. Which ones a run takes is decided by
their own text, so that a change of a solution changes no others.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from minitrain.lab.building.regions import BEGIN, END, filled
from minitrain.lab.grading.submission import Submission, read_python
from minitrain.lab.sandbox.loader import Cell
from minitrain.paths import course_root

from .bank import solution

OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
PAIRS = [("sum", "mean"), ("max", "min"), ("amax", "amin"), ("floor", "ceil"), ("all", "any")]
NAMES = {old: new for pair in PAIRS for old, new in (pair, pair[::-1])}
WITHOUT = ("clone", "contiguous", "detach", "copy", "float", "double", "abs", "flatten", "sqrt")
SYMMETRIC = (
    "transpose",
    "swapaxes",
    "max",
    "min",
    "maximum",
    "minimum",
    "gcd",
    "logaddexp",
    "equal",
)
CAN_GO = (ast.AugAssign, ast.Expr, ast.If, ast.Break, ast.Continue, ast.Delete, ast.Raise)


@dataclass(frozen=True)
class Mutant:
    """`change` stands in `line` of the exercise's cell, the solution's cell number `place`."""

    lab: str
    exercise: str
    change: str
    line: str
    place: int
    source: str

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it in `equivalent.py`."""
        return self.exercise, self.change, self.line

    def missing(self, text: str) -> list[str]:
        """No words are asked for."""
        return []

    def submission(self) -> Submission:
        whole = solution(self.lab)
        cells = list(whole.cells)
        cells[self.place] = Cell(cells[self.place].name, self.source, True)
        return replace(whole, cells=tuple(cells))


@cache
def marked(lab: str) -> Submission:
    """The course's own solution, with the marks of its regions."""
    path = course_root() / "solutions" / f"{lab}.py"
    return read_python(path, filled(path.read_text(encoding="utf-8")))


def mutants(lab: str, exercise: str, draw: int = 0) -> Iterator[Mutant]:
    """All of an exercise, in an order that `draw` decides."""
    for place, cell in enumerate(marked(lab).cells):
        if not cell.whole or not replace(marked(lab), cells=(cell,)).defines(exercise):
            continue
        tree, lines = ast.parse(cell.source), cell.source.split("\n")
        found = {
            (f"{shown(old)} -> {shown(new)}", lines[old.lineno - 1].strip()): (*where, old, new)
            for *where, old, new in changes(tree, solved(lines))
        }
        for change, line in sorted(found, key=lambda text: zlib.crc32(f"{draw} {text}".encode())):
            holder, field, index, old, new = found[change, line]
            put(holder, field, index, new)
            source = ast.unparse(ast.fix_missing_locations(tree))
            put(holder, field, index, old)
            yield Mutant(lab, exercise, change, line, place, source)


def solved(lines: list[str]) -> set[int]:
    """The numbers of the lines in solution regions."""
    inside, found = False, set()
    for number, line in enumerate(lines, 1):
        inside = (inside or line.strip() == BEGIN) and line.strip() != END
        if inside:
            found.add(number)
    return found


def changes(tree: ast.AST, region: set[int]) -> Iterator[tuple]:
    """(holder, field, place in a list or None, old node, new node) of every site in the region."""
    for holder in ast.walk(tree):
        for field, value in ast.iter_fields(holder):
            for place, old in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(old, (ast.expr, ast.stmt)) and old.lineno in region:
                    for new in instead(old):
                        if ast.dump(new) != ast.dump(old):
                            yield holder, field, place, old, new


def instead(node: ast.AST) -> Iterator[ast.AST]:
    """What a slip of the hand leaves in this node's place."""
    match node:
        case ast.BinOp(left, operator, right) if type(operator) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.AugAssign(target, operator, value) if type(operator) in OPERATORS:
            yield ast.AugAssign(target, OPERATORS[type(operator)](), value)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(OPERATORS[type(operator)](), values)
        case ast.Compare(left, [operator], others) if type(operator) in OPERATORS:
            yield ast.Compare(left, [OPERATORS[type(operator)]()], others)
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield operand
        case ast.Constant(int() as value) if not isinstance(value, bool):
            yield ast.Constant(value + 1)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant("avg" | "sum" as value):
            yield ast.Constant("sum" if value == "avg" else "avg")
        case ast.If(test, body, others):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, others)
        case ast.IfExp(test, body, other):
            yield ast.IfExp(test, other, body)
    match node:
        case ast.Call(ast.Name("range"), [*first, last], []):
            yield ast.Call(node.func, [*first, ast.BinOp(last, ast.Sub(), ast.Constant(1))], [])
        case ast.Call(ast.Name("reversed" | "sorted" | "list"), [only], _):
            yield only
        case ast.Call(ast.Name(name), _, _) if name in NAMES:
            yield ast.Call(ast.Name(NAMES[name], ast.Load()), node.args, node.keywords)
        case ast.Call(ast.Attribute(value, name), _, _) if name in NAMES:
            function = ast.Attribute(value, NAMES[name], ast.Load())
            yield ast.Call(function, node.args, node.keywords)
        case ast.Call(ast.Attribute(value, name), [], _) if name in WITHOUT:
            yield value
    match node:
        case ast.Call(function, [first, second, *more], keywords):
            named = getattr(function, "attr", getattr(function, "id", ""))
            if named not in SYMMETRIC and not isinstance(first, ast.Starred):
                yield ast.Call(function, [second, first, *more], keywords)
        case ast.Call(function, arguments, [_, *_] as keywords):
            yield ast.Call(function, arguments, keywords[:-1])
    if isinstance(node, CAN_GO) and not is_docstring(node):
        yield ast.Pass()
    if isinstance(node, ast.Assign) and not isinstance(node.targets[0], (ast.Name, ast.Tuple)):
        yield ast.Pass()


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def put(holder: ast.AST, field: str, place: int | None, node: ast.AST) -> None:
    if place is None:
        setattr(holder, field, node)
    else:
        getattr(holder, field)[place] = node


def shown(node: ast.AST) -> str:
    """Its first line, not too long."""
    text = ast.unparse(ast.fix_missing_locations(node)).split("\n")[0]
    return text if len(text) <= 60 else f"{text[:57]}..."
