"""Estimates of the runs in a CSV, a row each: `plan predict`. The columns are in columns.py.

A file is read twice, so that a long one streams: `count_runs` checks every row and raises an error
for the first invalid one, with its line; `predict` then gives one plain dictionary a row.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

from minitrain.errors import InputError, unknown_name
from minitrain.planning.columns import COLUMNS, run_from_row
from minitrain.planning.run import Run
from minitrain.planning.step.memory import GIB
from minitrain.planning.step.step import Step, estimate

NEEDED = ("chip", "layers", "hidden")
estimated = lru_cache(maxsize=4096)(estimate)


def read_runs(file: str | os.PathLike) -> Iterator[Run]:
    """The runs of a file, row by row; an InputError names file, line and field."""
    try:
        with Path(file).open(newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines)
            reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
            check_header(file, reader.fieldnames)
            for row in reader:
                yield run_of(file, reader.line_num, row)
    except FileNotFoundError:
        raise InputError(f"{file} does not exist: give a CSV file of runs") from None
    except IsADirectoryError:
        raise InputError(f"{file} is a folder: give a CSV file of runs") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} is not a CSV in UTF-8 ({error}): save it as one") from None


def run_of(file: str | os.PathLike, line: int, row: dict) -> Run:
    if None in row:
        raise InputError(f"{file}, line {line}: more cells than columns; quote what holds a comma")
    try:
        return run_from_row(row)
    except InputError as error:
        name = f" ({row['name']})" if row.get("name") else ""
        raise InputError(f"{file}, line {line}{name}: {error}") from None


def check_header(file: str | os.PathLike, columns: list[str] | None) -> None:
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


def count_runs(file: str | os.PathLike) -> int:
    """Checks every row, and counts them."""
    total = sum(1 for _ in read_runs(file))
    if not total:
        raise InputError(f"{file} has a header and no rows: give one for each run")
    return total


def predict(file: str | os.PathLike) -> Iterator[dict]:
    """An estimate of each run, as plain data; `count_runs` should have passed."""
    for run in read_runs(file):  # runs that differ in name alone are estimated once
        yield {"name": run.name, **as_dict(estimated(replace(run, name="")))}


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
