"""Tables, sentences and JSON on stdout."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def show_json(plain: Any) -> None:
    print(json.dumps(plain, indent=1))


def show_table(
    rows: Iterable[dict[str, str]], title: str | None = None, left: Collection[str] = ()
) -> None:
    """A row for each dictionary, whose keys are the columns; those in `left` are left-aligned."""
    rows = list(rows)
    table = Table(title=title, box=box.SIMPLE, pad_edge=False)
    for column in rows[0] if rows else ():
        table.add_column(column, justify="left" if column in left else "right")
    for row in rows:
        table.add_row(*map(Text, row.values()))  # a name may contain markup
    Console().print(table)


def say(*lines: str) -> None:
    """Prints sentences below a table, wrapped by the terminal."""
    for line in lines:
        Console().print(line, soft_wrap=True, highlight=False, markup=False)
