"""The output of `plan validate`: each table's errors, and the rows behind them."""

from __future__ import annotations

from dataclasses import asdict

from minitrain.apps.plan.show import say, show_json, show_table
from minitrain.planning.validate import Table, validate


def report(json: bool) -> None:
    from tqdm import tqdm

    tables = list(tqdm(validate(), unit="table", leave=False, desc="published runs"))
    if json:
        show_json({"tables": [asdict(table) for table in tables]})
        return
    title = "Predicted against published: |predicted / published - 1|"
    show_table(map(cells, tables), title, left=["table", "worst row", "use"])
    for table in tables:
        if table.rank_correlation is not None:
            say(f"{table.table}: rank correlation of FLOP/s a chip {table.rank_correlation:.3f}")
    say(
        "fitted: took part in choosing a chip's constants · circular: the publication multiplied "
        "the same numbers, so a small error checks units alone"
    )


def cells(table: Table) -> dict[str, str]:
    worst = max(table.rows, key=lambda row: abs(row.error))
    return {
        "table": table.table,
        "rows": str(len(table.rows)),
        "mean": f"{table.mean_error:.2%}",
        "worst": f"{table.worst_error:.2%}",
        "worst row": f"{worst.name} {worst.error:+.1%}",
        "use": table.use,
    }
