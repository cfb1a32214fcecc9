"""How large the course may be: code lines without docstrings, comments and blank lines.

    python tests/ceilings.py

A part over its ceiling fails `make check`. A goal below it is where that part is to come down to;
lower the ceiling whenever it does, and never raise one: what is added takes the place of something.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}


@dataclass(frozen=True)
class Part:
    """`count` is code lines, or all lines where `whole`; `files` the most files there may be."""

    name: str
    folders: tuple[str, ...]
    ceiling: int
    goal: int
    without: tuple[str, ...] = ()
    files: int | None = None
    whole: bool = False

    def paths(self) -> list[Path]:
        found = [path for folder in self.folders for path in (ROOT / folder).rglob("*")]
        out = [ROOT / folder for folder in self.without]
        return [
            path
            for path in found
            if path.suffix in ((".py", ".diff") if self.whole else (".py",))
            and not any(path.is_relative_to(folder) for folder in out)
        ]

    def count(self, paths: Iterable[Path]) -> int:
        texts = [path.read_text(encoding="utf-8") for path in paths]
        return sum(text.count("\n") if self.whole else code_lines(text) for text in texts)


NEWER = (
    "minitrain/alignment",
    "minitrain/model/architectures",
    "minitrain/parallel/compressed",
)
PARTS = (
    Part("techniques", ("minitrain",), 25_850, 21_000, ("minitrain/apps", *NEWER), files=303),
    Part("alignment, architectures, slow networks", NEWER, 2_600, 2_600, files=32),
    Part("apps", ("minitrain/apps",), 6_150, 6_000, files=62),
    Part("kit, grader and bench", ("labs/kit", "tests/grader", "tests/bench"), 13_690, 12_000),
    Part("tests", ("tests",), 78_400, 60_000, ("tests/grader", "tests/bench"), 375, whole=True),
)


def code_lines(source: str) -> int:
    """Lines that hold a token of code; of a docstring none."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                docstrings.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def main() -> int:
    too_large = 0
    for part in PARTS:
        paths = part.paths()
        lines = part.count(paths)
        print(f"{part.name}: {lines:,} lines in {len(paths)} files ", end="")
        print(f"(ceiling {part.ceiling:,}; goal {part.goal:,})")
        if lines > part.ceiling or (part.files is not None and len(paths) > part.files):
            too_large += 1
            print(f"  over its ceiling of {part.ceiling:,} lines, {part.files or 'any'} files:")
            print("  take out what nothing needs, or what two places say, before you add")
    return min(too_large, 1)


if __name__ == "__main__":
    sys.exit(main())
