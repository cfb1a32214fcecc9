"""The state of an exercise's code before anything is run to grade it."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from types import FunctionType
from typing import Any

from minitrain.lab.grading.submission import holds_stub


def not_yet(submitted: Any) -> str:
    """Why there is nothing to grade, in a sentence; nothing where there is.

    A function or class that still holds the lab's own mark, or whose cell was run last with an
    error of syntax: what `submitted` is was then defined by an earlier run.
    """
    name = submitted.__name__
    broken = _syntax_error(name)
    if broken:
        return f"Your cell of `{name}` is not Python yet: {broken}. Mend it, run it, then this one."
    left = [function.__name__ for function in _functions_of(submitted) if _is_unfilled(function)]
    if not left:
        return ""
    of = "" if left == [name] else f" (`{'`, `'.join(left)}`)"
    return f"Not written yet{of}: the reference stands in, so the cells below run."


def _functions_of(submitted: Any) -> list[FunctionType]:
    """The function itself, or those that a class defines."""
    found = vars(submitted).values() if inspect.isclass(submitted) else [submitted]
    return [f for f in map(inspect.unwrap, found) if inspect.isfunction(f)]  # static ones, too


def _is_unfilled(function: FunctionType) -> bool:
    """Does it still hold the line that the lab came with?"""
    try:
        return holds_stub(inspect.getsource(function))
    except (OSError, SyntaxError):  # defined where no source is kept
        return False


def _syntax_error(name: str) -> str:
    """The syntax error of the cell that was to define `name`, if it was the last one that tried."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    ran = shell.user_ns.get("In", []) if shell else []
    heading = re.compile(rf"^(?:def|class) {re.escape(name)}\b", re.MULTILINE)
    last = next((source for source in reversed(ran) if heading.search(source)), "")
    try:
        ast.parse(last)
    except SyntaxError as error:
        return f"line {error.lineno}, {error.msg}"
    return ""
