"""Rules for every lab: cell sizes, hints, total words, collapsed tables.

The limits reflect a reader's patience: an hour of work, a paragraph or two per cell.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from nbformat import NotebookNode

PROSE_WORDS = 130
LAB_WORDS = 3500
DEMO_LINES = 10
EXERCISE_LINES = 20
GIVEN_LINES = 20  # of visible code that is not the learner's own
STYLING = re.compile(r"\b(alt|labels|color|marker|figsize)=|# fmt|\.set_(xlim|ylim|xticks|title)\(")


def problems(lab: NotebookNode) -> list[str]:
    """Each rule that the notebook breaks, with the cell."""
    found = [line for number, cell in enumerate(lab.cells, 1) for line in _cell(number, cell)]
    counted = [c for c in lab.cells if c.cell_type == "markdown" and "hint" not in _tags(c)]
    total = sum(words(cell.source) for cell in counted)
    if total > LAB_WORDS:
        found.append(f"{total} words in all; a lab has at most {LAB_WORDS}")
    return found


def _cell(number: int, cell: NotebookNode) -> Iterator[str]:
    tags = _tags(cell)
    if cell.cell_type == "markdown":
        count = words(cell.source)
        if count > PROSE_WORDS:
            yield f"cell {number} has {count} words; a prose cell has at most {PROSE_WORDS}"
        for mark in re.finditer(r"</summary>\n(?!\n)", cell.source):
            line = cell.source[: mark.start()].count("\n") + 1
            yield f"cell {number}, line {line}: leave a blank line after </summary>"
        if 'class="alert' in cell.source:
            yield f"cell {number}: alert boxes are unreadable in the dark theme; use a blockquote"
        if re.search(r"!\[\s*\]\(|<img(?![^>]*\balt=)", cell.source):
            yield f"cell {number}: an image has no alt text"
    else:
        yield from _code_cell(number, cell, tags)


def _code_cell(number: int, cell: NotebookNode, tags: list[str]) -> Iterator[str]:
    lines = code_lines(without_pictures(cell.source))
    if "exercise" in tags and lines > EXERCISE_LINES:
        yield f"cell {number}: {lines} lines of code; an exercise has at most {EXERCISE_LINES}"
    if not tags and lines > DEMO_LINES:
        yield f"cell {number}: {lines} lines of code; a demo has at most {DEMO_LINES}"
    if not {"exercise", "folded"} & set(tags) and lines > GIVEN_LINES:
        yield f"cell {number}: {lines} lines of given code; fold it, or give it a name in minitrain"
    if "setup" in tags and lines > 6:
        yield f"cell {number}: {lines} lines; the setup cell has at most 6"
    if re.search(r"^\s*[%!]", cell.source, re.MULTILINE):
        yield f"cell {number} has a % magic or a ! command; Colab and graders lack them"
    if "folded" not in tags and (found := STYLING.search(cell.source)):
        yield f"cell {number}: '{found[0]}' is not for a learner to read: leave it out, or fold it"


def words(source: str) -> int:
    """Words of prose: without HTML tags, links' addresses, formulas and code blocks."""
    text = re.sub(r"```.*?```|\$\$.*?\$\$|<[^>]+>", " ", source, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return len(re.findall(r"[^\W_][\w'’.,\-]*", text))


def code_lines(source: str) -> int:
    """Lines of actual code: no blanks, comments, docstrings or lone brackets."""
    text = re.sub(r'""".*?"""', "", source, flags=re.DOTALL)
    lines = [line.strip() for line in text.splitlines()]
    return sum(
        bool(line) and not line.startswith("#") and not re.fullmatch(r"[)\]},]+", line)
        for line in lines
    )


def without_pictures(source: str) -> str:
    """The source with each call of `show` on one line: a picture's text is not code to follow."""
    lines = source.splitlines()
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except SyntaxError:
        return source
    for node in nodes:
        if isinstance(node, ast.Expr) and ast.unparse(node).startswith("show."):
            lines[node.lineno : node.end_lineno] = [""] * (node.end_lineno - node.lineno)
    return "\n".join(lines)


def _tags(cell: NotebookNode) -> list[str]:
    return cell.metadata.get("tags", [])
