"""What `plan validate` prints: each table's errors, and the rows behind them."""

from __future__ import annotations

import json as jsonlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minitrain.planning.validate import Table


def report(json: bool) -> None:
    from tqdm import tqdm

    from minitrain.planning.validate import validate

    tables = list(tqdm(validate(), unit="table", leave=False, desc="published runs"))
    if json:
        print(jsonlib.dumps({"tables": [table.as_dict() for table in tables]}, indent=1))
    else:
        print_tables(tables)


def print_tables(tables: list[Table]) -> None:
    from rich.console import Console
    from rich.table import Table as Grid

    console = Console()
    grid = Grid(title="Predicted against published: |predicted / published - 1|")
    for column in ("table", "rows", "mean", "worst", "worst row", "use"):
        grid.add_column(column, justify="right" if column in ("rows", "mean", "worst") else "left")
    for table in tables:
        worst = max(table.rows, key=lambda row: abs(row.error))
        said = f"{worst.name} {100 * worst.error:+.1f}%"
        errors = (f"{100 * table.mean_error:.2f}%", f"{100 * table.worst_error:.2f}%")
        grid.add_row(table.table, str(len(table.rows)), *errors, said, table.use)
    console.print(grid)
    for table in tables:
        if table.rank_correlation is not None:
            console.print(
                f"{table.table}: rank correlation of FLOP/s a chip {table.rank_correlation:.3f}"
            )
    console.print(
        "fitted: took part in choosing a chip's constants · circular: the publication multiplied "
        "the same numbers, so a small error checks units alone",
        soft_wrap=True,
    )
