"""The output of `plan predict`: a JSON array, one line a run, or a table; a bar on stderr."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from minitrain.apps.plan.show import say, show_table
from minitrain.planning.columns import count_runs, predict

TABLE_ROWS = 200  # a longer file is for --json; the table shows its head


def as_json(file: Path) -> None:
    """An array that is written as it grows, so that 100,000 runs need no memory."""
    estimates = with_bar(file)
    print("[", end="")
    for i, estimate in enumerate(estimates):
        print("," * (i > 0) + "\n" + json.dumps(estimate), end="")
    print("\n]")


def as_table(file: Path) -> None:
    estimates = with_bar(file)
    rows = [cells(run) for run in islice(estimates, TABLE_ROWS)]
    left_out = sum(1 for _ in estimates)
    show_table(rows, "Predicted, not measured", left=["name"])
    if left_out:
        say(f"and {left_out} more: use --json")


def cells(run: dict) -> dict[str, str]:
    over = "" if run["fits"] is not False else " too much"
    return {
        "name": run["name"],
        "step": f"{run['step_seconds']:.3g} s",
        "TFLOP/s a chip": f"{run['tflops_per_gpu']:.1f}",
        "MFU": f"{run['mfu']:.1%}",
        "HFU": f"{run['hfu']:.1%}",
        "tokens/s": f"{run['tokens_per_second']:,.0f}",
        "memory": f"{run['memory_gib']:.1f} GiB{over}",
    }


def with_bar(file: Path) -> Iterator[dict]:
    """The estimates, counted on stderr; the file is checked whole before this returns."""
    from tqdm import tqdm

    total = count_runs(file)
    return iter(tqdm(predict(file), total=total, unit="run", leave=False, disable=total < 100))
