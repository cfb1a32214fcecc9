"""`python -m minitrain train`: trains on one rank, on several, or on a mesh."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields as fields_of
from pathlib import Path
from typing import Annotated, Any

import typer

from minitrain.apps.kinds import DEVICE, FOLDER, whole
from minitrain.apps.options import Flag, Option
from minitrain.apps.train.mesh_check import RANKS
from minitrain.apps.train.options import Job, SinkOptions, new_options
from minitrain.apps.train.runs import find_run, goes_on, new_folder, resumed_options
from minitrain.errors import InputError
from minitrain.reliability.notice import stop_on_signals

LONGEST_SECONDS = 30 * 86400.0  # a launch has a deadline; a training run needs none
INTERRUPTED = 130  # the exit code that shells give to Ctrl-C
STARTED_BY_TORCHRUN = {
    "WORLD_SIZE": RANKS,
    "RANK": whole(0, 9_999),
    "LOCAL_WORLD_SIZE": RANKS,
    "LOCAL_RANK": whole(0, 9_999),
    "MASTER_PORT": whole(1, 65535),
}


def train(
    context: typer.Context,
    out: Annotated[Path | None, Option(FOLDER, "The run's folder.", "runs/PRESET-DATA")] = None,
    resume: Annotated[bool, Flag("Resume the run in --out, or the newest one in runs/.")] = False,
    device: Annotated[
        str | None, Option(DEVICE, "One of cpu, cuda, mps and xpu.", "cuda if there is one")
    ] = None,
    **fields: Any,
) -> None:
    """Train a model on a text. Ctrl-C saves it; the same command, or --resume, continues.

    minitrain train --minutes 2
    minitrain train --data sotu --steps 500 --ranks 2 --out runs/speeches
    """
    started = time.time()
    sinks = SinkOptions(**{field.name: fields.pop(field.name) for field in fields_of(SinkOptions)})
    given = {name: value for name, value in fields.items() if is_typed(context, name)}
    given = {**ranks_outside(), **given}
    again = not resume and goes_on(out, given)
    if resume or again:
        folder = find_run(out)
        options = resumed_options(folder, given)
    else:
        options = new_options(given)
        folder = new_folder(out, f"{options.preset}-{Path(options.data).stem}")
    with stop_file() as stop:
        job = Job(options, folder, resume or again, again, device, started, stop, sinks)
        text, interrupted = run(job)
    if os.environ.get("RANK", "0") == "0":
        print(text)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def is_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def ranks_outside() -> dict[str, int]:
    """The number of processes that torchrun or srun has started, by their environment."""
    outside = {name: os.environ[name] for name in STARTED_BY_TORCHRUN if name in os.environ}
    read = {name: STARTED_BY_TORCHRUN[name](text, name) for name, text in outside.items()}
    return {"ranks": read["WORLD_SIZE"]} if {"RANK", "WORLD_SIZE"} <= read.keys() else {}


def run(job: Job) -> tuple[str, bool]:
    """The summary, and whether it was interrupted; in this process, on ranks, or under torchrun."""
    from minitrain.apps.train.run import run_rank
    from minitrain.ranks.errors import RankInputError
    from minitrain.ranks.launch import launch

    options = job.options
    if options.ranks == 1 and not options.on_mesh and "RANK" not in os.environ:
        if not job.resume and (options.audit or options.hang_seconds is not None):
            raise InputError("--audit and --hang-seconds are for several ranks: give --ranks 2")
        return run_rank(None, job)
    try:
        return launch(run_rank, job, ranks=options.ranks, timeout=LONGEST_SECONDS)[0]
    except RankInputError as error:
        raise InputError(error.headline.split("InputError: ", 1)[-1]) from error


@contextmanager
def stop_file() -> Iterator[Path]:
    """A path that exists after Ctrl-C or SIGTERM: the run checks it after each step."""
    with tempfile.TemporaryDirectory(prefix="minitrain-stop-") as folder:
        path = Path(folder) / "stop"
        with stop_on_signals(path):
            yield path
