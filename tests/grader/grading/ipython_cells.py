"""Converts a notebook cell to Python as IPython does, keeping line numbers.

    %timeit f(x)      get_ipython().run_line_magic('timeit', 'f(x)')
    x = !ls           x = get_ipython().getoutput('ls')
    f?                get_ipython().run_line_magic('pinfo', 'f')
    %%time            pass; the rest of the cell is Python

In the sandbox these calls do nothing (`sandbox/loader.py`).
"""

from __future__ import annotations

import ast
import re
import warnings
from contextlib import suppress

MAGIC = re.compile(r"^\s*[%!?,;/]|[=?]\s*[%!]|\?\s*$", re.MULTILINE)  # may be IPython's, not Python
MOST_MAGICS = 1000  # per cell: each one makes IPython copy it
OTHER_LANGUAGES = re.compile(
    r"%%(!|(R|SVG|HTML|bash|cmd|cython|html|javascript|js|latex|markdown|perl|pypy|ruby|script|sh|"
    r"sql|svg|sx|system)\b)"
)


def as_python(source: str) -> str:
    """The cell with the same number of lines; unchanged where it is Python, or neither."""
    if is_python(source):
        return source
    lines = source.split("\n")
    first = next((n for n, line in enumerate(lines) if line.strip()), 0)
    if lines[first].startswith("%%"):
        below = [] if OTHER_LANGUAGES.match(lines[first]) else lines[first + 1 :]
        empty = len(lines) - first - 1 - len(below)
        return as_python("\n".join([*lines[:first], "pass", *below, *[""] * empty]))
    if not 0 < len(MAGIC.findall(source)) <= MOST_MAGICS:
        return source
    return "\n" * first + transformed("\n".join(lines[first:]))


def is_python(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(source)
    except SyntaxError:
        return False
    except (ValueError, RecursionError, MemoryError):  # IPython cannot convert it either
        return True
    return True


def transformed(source: str) -> str:
    """The lines after IPython's own transformers, each run once: its `transform_cell` restarts
    after each magic, and would take minutes for a cell of hundreds."""
    from IPython.core import inputtransformer2 as ipython  # takes half a second

    manager, lines = ipython.TransformerManager(), source.splitlines(keepends=True)
    try:
        for clean in manager.cleanup_transforms:
            lines = clean(lines)
        for tokens in reversed(ipython.make_tokens_by_line(lines)):
            found = [kind.find([tokens]) for kind in manager.token_transformers]
            for one in sorted(filter(None, found), key=ipython.TokenTransformBase.sortby):
                with suppress(SyntaxError):
                    lines = in_place(lines, one.transform(lines))
                    break
    except Exception:  # IPython's tokenizer may raise anything on invalid input
        return source
    whole = "".join(lines)
    return whole if source.endswith("\n") else whole.removesuffix("\n")


def in_place(lines: list[str], new: list[str]) -> list[str]:
    """Pads with empty lines after a multi-line magic."""
    if missing := len(lines) - len(new):
        at = next(n for n, (old, own) in enumerate(zip(lines, new)) if old != own)
        new[at : at + 1] = [new[at], *["\n"] * missing]
    return new
