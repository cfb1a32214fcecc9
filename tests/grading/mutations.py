"""Mutants of right solutions: one small change each, made anew in every run.

A change is an expression or a statement of an exercise's solution region in the place of another:
`a + b -> a - b`, `x.clone() -> x`, `group.barrier() -> pass`. Each exercise has those of the course's
own solution and of a right one of its bank, written in another style. Which ones a run takes is
decided by their own text, so that a change of a solution changes no others.
"""

from __future__ import annotations

import ast
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from minitrain.lab.building.regions import BEGIN, END, filled
from minitrain.lab.grading.submission import Submission, read_python
from minitrain.lab.sandbox.loader import Cell
from minitrain.paths import course_root

from .bank import Specimen, read, solution

OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.MatMult)
PAIRS = [
    *[("sum", "mean"), ("max", "min"), ("amax", "amin"), ("floor", "ceil"), ("all", "any")],
    *[("argmax", "argmin"), ("float64", "float32"), ("zeros", "ones"), ("append", "extend")],
    *[("unfold", "split"), ("popleft", "pop")],
]
NAMES = {old: new for pair in PAIRS for old, new in (pair, pair[::-1])}
NAMES |= {"round": "floor", "zeros_like": "empty_like"}
WITHOUT = (  # x.clone() -> x, F.silu(x) -> x, torch.no_grad(): body -> body
    *("clone", "contiguous", "detach", "copy", "float", "double", "long", "abs", "flatten", "sqrt"),
    *("to", "type_as", "clamp", "clamp_min", "round", "floor", "ceil", "log", "exp", "square"),
    *("relu", "gelu", "silu", "sigmoid", "tanh", "softmax", "log_softmax", "dropout", "rsqrt"),
    *("unsqueeze", "squeeze", "sorted", "reversed", "list", "tuple", "dict", "set", "int", "bool"),
    *("Parameter", "deepcopy", "transpose", "unique", "strip", "lower", "no_grad", "t"),
)
SYMMETRIC = (
    *("transpose", "swapaxes", "max", "min", "maximum", "minimum", "gcd", "logaddexp", "equal"),
    *("isinstance", "getattr", "hasattr", "zip"),
)
CAN_GO = (
    *(ast.AugAssign, ast.Expr, ast.If, ast.Break, ast.Continue, ast.Delete, ast.Raise),
    *(ast.Assert, ast.For, ast.While),
)


@dataclass(frozen=True)
class Mutant:
    """`change` stands in `line` of the exercise's cell, cell number `place` of the course's own
    solution, or of the right one of the bank that is called `of`."""

    lab: str
    exercise: str
    change: str
    line: str
    place: int
    source: str
    of: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it in `equivalent.py`."""
        return self.exercise, self.change, self.line

    def missing(self, text: str) -> list[str]:
        """No words are asked for."""
        return []

    def submission(self) -> Submission:
        whole = base(self.lab, self.of)
        cells = list(whole.cells)
        cells[self.place] = Cell(cells[self.place].name, self.source, True)
        return replace(whole, cells=tuple(cells))


def base(lab: str, of: str) -> Submission:
    return rights(lab)[of].submission() if of else solution(lab)


@cache
def marked(lab: str) -> Submission:
    """The course's own solution, with the marks of its regions."""
    path = course_root() / "solutions" / f"{lab}.py"
    return read_python(path, filled(path.read_text(encoding="utf-8")))


@cache
def rights(lab: str) -> dict[str, Specimen]:
    path = Path(__file__).parent / "banks" / "right" / f"{lab.partition('_')[0]}.diff"
    return {specimen.name: specimen for specimen in read(path)}


def mutants(lab: str, exercise: str, draw: int = 0) -> Iterator[Mutant]:
    """All of an exercise, then of a right one in another style, in an order that `draw` decides."""
    found = list(mutants_of(lab, exercise, marked(lab), ""))
    other = next((one.name for one in rights(lab).values() if one.exercise == exercise), "")
    if other:
        found += mutants_of(lab, exercise, base(lab, other), other)

    def place(mutant: Mutant) -> tuple[bool, int]:
        return bool(mutant.of), zlib.crc32(f"{draw} {mutant.change} {mutant.line}".encode())

    return iter(sorted(found, key=place))


def mutants_of(lab: str, exercise: str, whole: Submission, of: str) -> Iterator[Mutant]:
    for place, cell in enumerate(whole.cells):
        if not cell.whole or not replace(whole, cells=(cell,)).defines(exercise):
            continue
        tree, lines = ast.parse(cell.source), cell.source.split("\n")
        region = set(range(1, len(lines) + 1)) if of else solved(lines)
        seen = set()
        for holder, field, index, old, new in changes(tree, region):
            line = lines[old.lineno - 1].strip()
            change = f"{shown(old)} -> {shown(new)}"
            if (change, line) not in seen:
                seen.add((change, line))
                put(holder, field, index, new)
                source = ast.unparse(ast.fix_missing_locations(tree))
                put(holder, field, index, old)
                yield Mutant(lab, exercise, change, line, place, source, of)


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
    """What a slip leaves in this node's place."""
    match node:
        case ast.Call():
            yield from calls(node)
        case ast.stmt():
            yield from statements(node)
        case ast.expr():
            yield from expressions(node)


def expressions(node: ast.expr) -> Iterator[ast.AST]:
    """Another operator or order, a term or condition less, off by one, the other end, no copy."""
    match node:
        case ast.BinOp(left, operator, right):
            if type(operator) in OPERATORS:
                yield ast.BinOp(left, OPERATORS[type(operator)](), right)
            if isinstance(operator, ORDERED):
                yield ast.BinOp(right, operator, left)
            yield left
            if isinstance(operator, (ast.Add, ast.Mult)):
                yield right
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(OPERATORS[type(operator)](), values)
            yield from values
        case ast.Compare(left, operators, others):
            for place, operator in enumerate(operators):
                changed = [*operators]
                changed[place] = OPERATORS[type(operator)]()
                yield ast.Compare(left, changed, others)
        case ast.UnaryOp(ast.USub() | ast.Not(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(float() as value):
            yield ast.Constant(2 * value)
        case ast.Constant("avg" | "sum" as value):
            yield ast.Constant("sum" if value == "avg" else "avg")
        case ast.IfExp(test, body, other):
            yield from (ast.IfExp(test, other, body), body, other)
        case ast.Subscript(value, ast.Constant(0), context):
            yield ast.Subscript(value, ast.UnaryOp(ast.USub(), ast.Constant(1)), context)
        case ast.Subscript(value, ast.UnaryOp(ast.USub(), ast.Constant(1)), context):
            yield ast.Subscript(value, ast.Constant(0), context)
        case ast.Subscript(value, ast.Slice(lower, upper, step), context):
            for fewer in ((None, upper, step), (lower, None, step), (lower, upper, None)):
                yield ast.Subscript(value, ast.Slice(*fewer), context)
            if (lower, upper, step) == (None, None, None):
                yield value
        case ast.ListComp(element, [ast.comprehension(target, source, [_, *_]), *more]):
            whole = ast.comprehension(target, source, [], 0)
            yield ast.ListComp(element, [whole, *more])
        case ast.GeneratorExp(element, [ast.comprehension(target, source, [_, *_]), *more]):
            whole = ast.comprehension(target, source, [], 0)
            yield ast.GeneratorExp(element, [whole, *more])
        case ast.List([ast.Starred(value)]) | ast.Attribute(value, "T" | "mT"):
            yield value
        case ast.Attribute(value, name, context) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], context)
        case ast.JoinedStr(values):
            yield ast.JoinedStr([v for v in values if not isinstance(v, ast.Constant)])


def calls(node: ast.Call) -> Iterator[ast.AST]:
    """Another function, none, arguments in another order, an argument less, in place."""
    function, positional, keywords = node.func, node.args, node.keywords
    named = getattr(function, "attr", getattr(function, "id", ""))
    is_method = isinstance(function, ast.Attribute) and getattr(function.value, "id", "") not in (
        *("torch", "F", "nn", "math", "np", "copy"),
    )
    match node:
        case ast.Call(ast.Name("range"), [*first, last], []):
            yield ast.Call(function, [*first, ast.BinOp(last, ast.Sub(), ast.Constant(1))], [])
        case ast.Call(ast.Name("max" | "min"), [first, second], []):
            yield from (first, second)
        case ast.Call(ast.Attribute(ast.Constant(str() as text), "join"), _, _) if text:
            yield ast.Call(ast.Attribute(ast.Constant(""), "join", ast.Load()), positional, [])
    if named in NAMES:
        renamed: ast.expr = ast.Name(NAMES[named], ast.Load())
        if isinstance(function, ast.Attribute):
            renamed = ast.Attribute(function.value, NAMES[named], ast.Load())
        yield ast.Call(renamed, positional, keywords)
    if named in WITHOUT and is_method:
        yield function.value
    elif named in WITHOUT and positional and not isinstance(positional[0], ast.Starred):
        yield positional[0]
    if len(positional) > 1 and named not in SYMMETRIC:
        first, second, *more = positional
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            yield ast.Call(function, [second, first, *more], keywords)
    for place in range(len(keywords)):
        yield ast.Call(function, positional, [*keywords[:place], *keywords[place + 1 :]])


def statements(node: ast.stmt) -> Iterator[ast.AST]:
    """A statement less, a branch less or taken always, the other branch, in place, kept."""
    match node:
        case ast.If(test, body, others):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, others)
            yield ast.If(ast.Constant(True), body, [])
            if others:
                yield ast.If(test, body, [])
        case ast.With(_, body):
            yield ast.If(ast.Constant(True), body, [])
        case ast.AugAssign(target, operator, value):
            if type(operator) in OPERATORS:
                yield ast.AugAssign(target, OPERATORS[type(operator)](), value)
            yield ast.Assign([target], value)
        case ast.Assign([ast.Name(name) as target], ast.BinOp(ast.Name(left), operator, right)):
            if name == left:
                yield ast.AugAssign(target, operator, right)
        case ast.FunctionDef(decorator_list=[_, *_]):
            yield ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": []})
        case ast.Return(ast.Tuple([first, second])):
            yield ast.Return(ast.Tuple([second, first], ast.Load()))
    if isinstance(node, CAN_GO) and not is_docstring(node):
        yield ast.Pass()
    if isinstance(node, ast.Assign):
        used = {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
        names = {getattr(target, "id", "") for target in node.targets}
        if names <= used or not isinstance(node.targets[0], (ast.Name, ast.Tuple)):
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
