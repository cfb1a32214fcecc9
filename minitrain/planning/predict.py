"""Runs from a CSV, checked first and then estimated one by one, so that a long file streams.

The first pass reads every row and refuses the first that cannot be, with its line: what is printed
is then whole. The second gives one plain dictionary a row; nothing is held of either.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from minitrain.errors import InputError, unknown_name
from minitrain.planning.columns import COLUMNS, run_from_row
from minitrain.planning.run import Run
from minitrain.planning.step.memory import GIB
from minitrain.planning.step.step import Step, estimate

NEEDED = ("chip", "layers", "hidden")


def read_runs(file: Path) -> Iterator[Run]:
    """The runs of a file, row by row; an InputError names file, line and field."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            check_header(file, reader.fieldnames)
            for row in reader:
                yield run_of(file, reader.line_num, row)
    except FileNotFoundError:
        raise InputError(f"{file} is not there: give a CSV file of runs") from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder: give a CSV file of runs") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} is no CSV in UTF-8 ({error}): save it as one") from None


def run_of(file: Path, line: int, row: dict) -> Run:
    if None in row:
        raise InputError(f"{file}, line {line}: more cells than columns; quote what holds a comma")
    try:
        return run_from_row(row)
    except InputError as error:
        name = f" ({row['name']})" if row.get("name") else ""
        raise InputError(f"{file}, line {line}{name}: {error}") from None


def check_header(file: Path, columns: list[str] | None) -> None:
    if not columns:
        raise InputError(f"{file} is empty: give a header, and a row for each run")
    for column in columns:
        if column not in COLUMNS:
            raise unknown_name(f"column of {file}", column, COLUMNS)
    twice = [column for column in COLUMNS if columns.count(column) > 1]
    if twice:
        raise InputError(f"{file} has the column {twice[0]} twice: leave one of them")
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise InputError(
            f"{file} lacks the column {missing[0]}: every run needs {', '.join(NEEDED)}"
        )


def count_runs(file: Path) -> int:
    """Checks every row, and counts them."""
    total = sum(1 for _ in read_runs(file))
    if not total:
        raise InputError(f"{file} has a header and no rows: give one for each run")
    return total


def predict(file: Path) -> Iterator[dict]:
    """An estimate of each run, as plain data; `count_runs` should have passed."""
    for run in read_runs(file):
        yield {"name": run.name, **of_shape(run)}


@lru_cache(maxsize=4096)
def estimated(chip, per_node, model, plan, seq, global_batch) -> Step:
    return estimate(Run("run", chip, per_node, model, plan, seq, global_batch))


def of_shape(run: Run) -> dict:
    """Runs that differ in name alone are estimated once."""
    step = estimated(run.chip, run.per_node, run.model, run.plan, run.seq, run.global_batch)
    return as_dict(step)


def as_dict(step: Step) -> dict:
    memory, limit = step.memory, step.run.chip.memory
    return {
        "step_seconds": step.seconds,
        "tflops_per_gpu": step.tflops_per_gpu,
        "mfu": step.mfu,
        "hfu": step.hfu,
        "tokens_per_second": step.tokens_per_second,
        "memory_gib": memory.total / GIB,
        "memory_parts_gib": {part: size / GIB for part, size in asdict(memory).items()},
        "step_parts_seconds": dict(step.parts),
        "fits": None if limit is None else memory.total <= limit,
        "gpus": step.run.gpus,
        "micro_batch": step.run.plan.micro_batch,
        "vpp": step.run.plan.vpp,
        "calibrated": step.run.chip.calibrated,
    }
