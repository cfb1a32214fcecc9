"""What `plan predict` prints: a JSON array, one line a run, or a table; a bar on stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from minitrain.planning.predict import count_runs, predict

TABLE_ROWS = 200  # a longer file is for --json; the table shows its head


def as_json(file: Path) -> None:
    """An array that is written as it grows, so that 100,000 runs need no memory."""
    estimates = with_bar(file)
    print("[", end="")
    for i, estimate in enumerate(estimates):
        print("," * (i > 0) + "\n" + json.dumps(estimate), end="")
    print("\n]")


def as_table(file: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Predicted, not measured")
    for column in ("name", "step", "TFLOP/s a chip", "MFU", "HFU", "tokens/s", "memory"):
        table.add_column(column, justify="left" if column == "name" else "right")
    left_out = 0
    for i, run in enumerate(with_bar(file)):
        if i >= TABLE_ROWS:
            left_out += 1
            continue
        table.add_row(*cells(run))
    console = Console()
    console.print(table)
    if left_out:
        console.print(f"and {left_out} more: use --json")


def cells(run: dict) -> list[str]:
    over = "" if run["fits"] is not False else " too much"
    return [
        run["name"],
        f"{run['step_seconds']:.3g} s",
        f"{run['tflops_per_gpu']:.1f}",
        f"{100 * run['mfu']:.1f}%",
        f"{100 * run['hfu']:.1f}%",
        f"{run['tokens_per_second']:,.0f}",
        f"{run['memory_gib']:.1f} GiB{over}",
    ]


def with_bar(file: Path) -> Iterable[dict]:
    """The estimates, counted on stderr; the file is checked whole before this returns."""
    from tqdm import tqdm

    total = count_runs(file)
    return tqdm(predict(file), total=total, unit="run", leave=False, disable=total < 100)
