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
    """A sentence why there is nothing to grade, or "".

    Covers a function or class that still has the lab's stub mark, or whose cell last had a syntax
    error: `submitted` then comes from an earlier run.
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
    """True if it still contains the lab's stub line."""
    try:
        return holds_stub(inspect.getsource(function))
    except (OSError, SyntaxError):  # defined without available source
        return False


def _syntax_error(name: str) -> str:
    """The syntax error of the last cell that tried to define `name`, if any."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    ran = shell.user_ns.get("In", []) if shell else []
    heading = re.compile(rf"^(?:def|class) {re.escape(name)}\b", re.MULTILINE)
    last = next((source for source in reversed(ran) if heading.search(source)), "")
    try:
        ast.parse(last)
    except SyntaxError as error:
        return f"line {error.lineno}, {error.msg}"
    return ""
