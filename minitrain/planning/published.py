"""Published training steps in one unit: the run, and the seconds that its authors' figure means.

Papers print what they like: seconds, tokens per second, FLOP/s with or without recomputation. All
of it is seconds of a step, once the run's size is known.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minitrain.paths import data_dir
from minitrain.planning import workload
from minitrain.planning.columns import run_from_row
from minitrain.planning.hardware import number, read_table
from minitrain.planning.run import Run


@dataclass(frozen=True)
class PublishedStep:
    table: str
    run: Run
    seconds: float


def teraflop_per_chip(flops: int, run: Run) -> float:
    return flops / run.gpus / 1e12


SECONDS: dict[str, Callable[[float, Run], float]] = {
    "step_seconds": lambda value, run: value,
    "tokens_per_second": lambda value, run: run.tokens / value,
    "tflops_per_gpu": lambda v, run: teraflop_per_chip(workload.model_flops(run), run) / v,
    "hardware_tflops": lambda v, run: teraflop_per_chip(workload.hardware_flops(run), run) / v,
}


def published_steps(table: str | None = None) -> list[PublishedStep]:
    """The rows of `data/published_runs.csv` that say how long a step took, of one table or all."""
    found = []
    for row in read_table(data_dir() / "published_runs.csv"):
        if row["metric"] in SECONDS and table in (None, row["table"]):
            run = run_from_row(row)
            seconds = SECONDS[row["metric"]](number(row, "published"), run)
            found.append(PublishedStep(row["table"], run, seconds))
    return found
