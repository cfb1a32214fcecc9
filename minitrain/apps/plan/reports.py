"""`python -m minitrain plan predict | validate | swing`: estimates of given runs, the planner's
errors against published runs, and the power that a grid sees.
"""

from __future__ import annotations

import json as jsons
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minitrain.apps.kinds import FILE, real
from minitrain.apps.options import Argument, Option
from minitrain.apps.plan.options import GPUS, Json
from minitrain.apps.tables import say, show_json, show_table

if TYPE_CHECKING:
    from minitrain.planning.validate import Table

TABLE_ROWS = 200  # a longer file is for --json; the table shows its head


def predict(
    runs: Annotated[Path, Argument(FILE, "A CSV file with a row for each run.")],
    json: Json = False,
) -> None:
    """Estimate step time, utilisation and memory of each run in a file.

    minitrain plan predict data/published_runs.csv
    minitrain plan predict runs.csv --json
    """
    estimates = with_bar(runs)
    if json:
        write_array(estimates)
        return
    rows = [estimate_cells(run) for run in islice(estimates, TABLE_ROWS)]
    left_out = sum(1 for _ in estimates)
    show_table(rows, "Predicted, not measured", left=["name"])
    if left_out:
        say(f"and {left_out} more: use --json")


def write_array(estimates: Iterator[dict]) -> None:
    """Streams JSON, so that 100,000 runs need no memory."""
    print("[", end="")
    for i, estimate in enumerate(estimates):
        print("," * (i > 0) + "\n" + jsons.dumps(estimate), end="")
    print("\n]")


def estimate_cells(run: dict) -> dict[str, str]:
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
    """The estimates, counted on stderr; the whole file is checked before this returns."""
    from tqdm import tqdm

    from minitrain.planning.predict import count_runs, predict

    total = count_runs(file)
    return iter(tqdm(predict(file), total=total, unit="run", leave=False, disable=total < 100))


def validate(json: Json = False) -> None:
    """Hold the planner against every run of data/published_runs.csv.

    minitrain plan validate
    minitrain plan validate --json
    """
    from tqdm import tqdm

    from minitrain.planning.validate import validate as validated

    tables = list(tqdm(validated(), unit="table", leave=False, desc="published runs"))
    if json:
        show_json({"tables": [asdict(table) for table in tables]})
        return
    title = "Predicted against published: |predicted / published - 1|"
    show_table(map(table_cells, tables), title, left=["table", "worst row", "use"])
    for table in tables:
        if table.rank_correlation is not None:
            say(f"{table.table}: rank correlation of FLOP/s a chip {table.rank_correlation:.3f}")
    say(
        "fitted: took part in choosing a chip's constants · circular: the publication multiplied "
        "the same numbers, so a small error checks units alone"
    )


def table_cells(table: Table) -> dict[str, str]:
    worst = max(table.rows, key=lambda row: abs(row.error))
    return {
        "table": table.table,
        "rows": str(len(table.rows)),
        "mean": f"{table.mean_error:.2%}",
        "worst": f"{table.worst_error:.2%}",
        "worst row": f"{worst.name} {worst.error:+.1%}",
        "use": table.use,
    }


# --- the power of a job over a minute ---

CURES = {
    "as it is": {},
    "half work while waiting": {"dummy": 0.5},
    "full work while waiting": {"dummy": 1.0},
    "in two groups": {"groups": 2},
    "in ten groups": {"groups": 10},
}
NOTHING = {"hz": None, "amplitude_watts": 0.0}


def swing(
    gpus: Annotated[int, Option(GPUS, "Chips that step together.")] = 16_384,
    compute: Annotated[float, Option(real(0.01, 1e4), "Seconds of computing in a step.")] = 8.0,
    wait: Annotated[float, Option(real(0.01, 1e4), "Seconds of waiting in a step.")] = 2.0,
    json: Json = False,
) -> None:
    """Show the power that a grid sees of a job (emulated), as it is and with two remedies.

    minitrain plan swing
    minitrain plan swing --gpus 4096 --compute 2 --wait 1
    """
    from minitrain.monitoring.power_swing import BAND

    rows = power_rows(gpus, compute, wait)
    if json:
        show_json({"emulated": True, "rows": rows})
        return
    band = f"strongest of {BAND[0]:g} to {BAND[1]:g} Hz (MW)"
    show_table(
        [power_cells(row, band) for row in rows],
        f"{gpus:,} H100, {compute:g} s of compute and {wait:g} s of waiting a step (emulated)",
        left=("the ranks work",),
    )
    say("Work while waiting costs energy; groups cost none, but each has to end its step alone.")


def power_cells(row: dict, band: str) -> dict[str, str]:
    seen = "–" if row["hz"] is None else f"{row['amplitude_watts'] / 1e6:.2f} at {row['hz']:.2g} Hz"
    return {
        "the ranks work": row["way"],
        "mean (MW)": f"{row['mean_watts'] / 1e6:.2f}",
        "up and down (MW)": f"{row['swing_watts'] / 1e6:.2f}",
        band: seen,
    }


def power_rows(gpus: int, compute: float, wait: float) -> list[dict]:
    """Watts with each remedy, over 60 steps; `hz` of the largest amplitude in the grid's band."""
    from minitrain.monitoring.power_swing import BAND, job_power

    step = compute + wait
    found = []
    for way, cure in CURES.items():
        job = job_power(gpus, compute, wait, 60 * step, step / 200, **cure)
        row = {"way": way, "mean_watts": job.mean_watts, "swing_watts": job.swing_watts}
        frequencies, _ = job.spectrum()
        in_band = ((frequencies >= BAND[0]) & (frequencies <= BAND[1])).any()
        hz, amplitude = job.strongest() if in_band else (None, 0.0)
        is_seen = amplitude > 1e-6 * job.mean_watts  # not rounding: a step may be out of the band
        found.append(row | ({"hz": hz, "amplitude_watts": amplitude} if is_seen else NOTHING))
    return found
