"""Checks the planner against published results: every row of `data/published_runs.csv`, by table.

A row names a metric; `PREDICTED` maps it to its computation. `use` says what a small error is
worth: *fitted* rows were used to fit a chip's constants, *not fitted* ones were not, and *circular*
ones are products of numbers that the publication itself multiplied, so they only check units.

    error = predicted / published - 1         per table: the mean and the maximum of |error|
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from minitrain.measure.parameters import parameter_count
from minitrain.network.links import published_sweep
from minitrain.paths import data_dir
from minitrain.planning.columns import run_from_row
from minitrain.planning.hardware import number, read_table
from minitrain.planning.money.cost import chip_hours
from minitrain.planning.run import Run
from minitrain.planning.scaling.laws import CHINCHILLA_REFITTED, fit_frontier
from minitrain.planning.step.layer_times import layer_times
from minitrain.planning.step.memory import ZERO_PAPER, peak_memory, state_bytes
from minitrain.planning.step.network import fabric_of, fit_wire
from minitrain.planning.step.step import estimate, hardware_flops, model_flops
from minitrain.planning.step.streams import backward_tasks, forward_tasks, repeated

GRID_KG_PER_KWH = 0.42  # one constant that fits every published CO2 row of the Llama model cards
SWEEPS = ("a100_8gpu_nvlink3", "h200_8gpu_nvls")

Row = dict[str, str]


@dataclass(frozen=True)
class Checked:
    name: str
    published: float
    predicted: float
    error: float


@dataclass(frozen=True)
class Table:
    """`rank_correlation`: Spearman's, of the model FLOP/s per chip if rows are runs."""

    table: str
    mean_error: float
    worst_error: float
    rows: list[Checked]
    use: str
    rank_correlation: float | None = None


def validate() -> Iterator[Table]:
    """Yields the tables as they are finished."""
    rows = read_table(data_dir() / "published_runs.csv")
    for name, group in groupby(rows, key=lambda row: row["table"]):
        yield checked_table(name, list(group))
    for sweep in SWEEPS:
        yield sweep_table(sweep)


def checked_table(name: str, rows: list[Row]) -> Table:
    results = [checked(row, rows) for row in rows]
    uses = " and ".join(dict.fromkeys(row["use"] for row in rows if row["use"])) or "closed form"
    correlation = None
    if rows[0]["metric"] == "tokens_per_second" and len(rows) > 4:
        correlation = utilisation_correlation(rows, results)
    return table_of(name, results, uses, correlation)


def table_of(name: str, rows: list[Checked], use: str, correlation: float | None = None) -> Table:
    errors = [abs(row.error) for row in rows]
    return Table(name, sum(errors) / len(errors), max(errors), rows, use, correlation)


def checked(row: Row, table: list[Row]) -> Checked:
    published = number(row, "published")
    predicted = PREDICTED[row["metric"]](row, table)
    return Checked(row["name"], published, predicted, predicted / published - 1)


def sweep_table(name: str) -> Table:
    """A measured all-reduce over sizes, in seconds."""
    sweep = published_sweep(name)
    wire = fit_wire(sweep)
    rows = []
    for size, seconds in sweep.points:
        predicted = wire.seconds(sweep.kind, size, sweep.ranks)
        rows.append(Checked(f"{size / 2**20:g} MiB", seconds, predicted, predicted / seconds - 1))
    return table_of(f"All-reduce {name}", rows, "fitted")


def teraflop_per_chip(flops: int, run: Run) -> float:
    return flops / run.gpus / 1e12


# A rate is work over seconds, and seconds are work over the rate: one function converts
# published rates to seconds, and predicted seconds to rates.
RATES: dict[str, Callable[[float, Run], float]] = {
    "step_seconds": lambda value, run: value,
    "tokens_per_second": lambda value, run: run.tokens / value,
    "tflops_per_gpu": lambda v, run: teraflop_per_chip(model_flops(run), run) / v,
    "hardware_tflops": lambda v, run: teraflop_per_chip(hardware_flops(run), run) / v,
}


def of_step(row: Row, table: list[Row]) -> float:
    """A metric derived from the step time of the row's run."""
    run = run_from_row(row)
    return RATES[row["metric"]](estimate(run).seconds, run)


def of_memory(value: Callable) -> Callable[[Row, list[Row]], float]:
    return lambda row, table: value(peak_memory(run_from_row(row))) / 2**30


def zero_gigabytes(row: Row, table: list[Row]) -> float:
    ranks, stage = int(row["dp"]), int(row["zero"])
    return sum(state_bytes(number(row, "parameters"), stage, ranks, ZERO_PAPER)) / 1e9


def layer_milliseconds(tasks: Callable) -> Callable[[Row, list[Row]], float]:
    def value(row: Row, table: list[Row]) -> float:
        run = run_from_row(row)
        times = layer_times(run, fabric_of(run.chip, run.per_node), mixture=False)
        passed = repeated(tasks(run, times), run.model.layers)
        return passed.seconds / run.model.layers * 1e3

    return value


def hours_of(row: Row, table: list[Row]) -> float:
    return chip_hours(number(row, "tokens"), estimate(run_from_row(row)))


def megawatt_hours(row: Row, table: list[Row]) -> float:
    return number(row, "chip_hours") * number(row, "watts") * number(row, "pue") / 1e6


def parameters_of(row: Row, table: list[Row]) -> float:
    run = run_from_row(row)
    return parameter_count(run.model, run.seq)


def frontier_tokens(exponent: float) -> Callable[[Row, list[Row]], float]:
    """Chinchilla's first two approaches: a power law through the table, with one constant."""

    def value(row: Row, table: list[Row]) -> float:
        points = [(number(r, "parameters"), number(r, "published")) for r in table]
        frontier = fit_frontier(exponent, points)
        return frontier.tokens(frontier.flops_for(number(row, "parameters")))

    return value


def law_tokens(row: Row, table: list[Row]) -> float:
    """The tokens for which this model size is optimal under the scaling law."""
    law, n = CHINCHILLA_REFITTED, number(row, "parameters")
    # on the frontier α A / N^α = β B / D^β
    return (law.beta * law.B * n**law.alpha / (law.alpha * law.A)) ** (1 / law.beta)


PREDICTED: dict[str, Callable[[Row, list[Row]], float]] = {
    "state_gb": zero_gigabytes,
    "activation_gib": of_memory(lambda memory: memory.activations),
    "state_gib": of_memory(lambda memory: memory.states - memory.embedding),
    "layer_fwd_ms": layer_milliseconds(forward_tasks),
    "layer_bwd_ms": layer_milliseconds(backward_tasks),
    **dict.fromkeys(RATES, of_step),
    "mfu": lambda row, table: estimate(run_from_row(row)).mfu,
    "chip_hours": hours_of,
    "tonnes_co2": lambda row, table: megawatt_hours(row, table) * GRID_KG_PER_KWH,
    "mwh": megawatt_hours,
    "parameters": parameters_of,
    "chinchilla_1_tokens": frontier_tokens(0.50),
    "chinchilla_2_tokens": frontier_tokens(0.49),
    "chinchilla_3_tokens": law_tokens,
}


def utilisation_correlation(rows: list[Row], results: list[Checked]) -> float:
    """Correlation of published and predicted FLOP/s per chip: raw speed mostly follows size."""
    runs = [run_from_row(row) for row in rows]
    work = [model_flops(run) / run.tokens / run.gpus for run in runs]
    published = [w * result.published for w, result in zip(work, results)]
    return spearman(published, [w * result.predicted for w, result in zip(work, results)])


def spearman(x: list[float], y: list[float]) -> float:
    """Rank correlation; tied values share their mean rank."""
    import pandas as pd

    return float(pd.Series(x).rank().corr(pd.Series(y).rank()))


@dataclass(frozen=True)
class PublishedStep:
    table: str
    run: Run
    seconds: float


def published_steps(table: str | None = None) -> list[PublishedStep]:
    """The rows of `data/published_runs.csv` with a step time, from one table or all."""
    found = []
    for row in read_table(data_dir() / "published_runs.csv"):
        if row["metric"] in RATES and table in (None, row["table"]):
            run = run_from_row(row)
            seconds = RATES[row["metric"]](number(row, "published"), run)
            found.append(PublishedStep(row["table"], run, seconds))
    return found
