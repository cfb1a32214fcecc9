"""`python -m minitrain train`: a model from a text, on one rank, on several, or on a mesh."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minitrain.commands.train.stopping import stop_on_signals
from minitrain.errors import InputError

if TYPE_CHECKING:
    from minitrain.commands.train.options import TrainOptions

LONGEST_SECONDS = 30 * 86400.0  # a launch has a deadline; a training run needs none
INTERRUPTED = 130  # the exit code that shells give to Ctrl-C


def train(
    preset: Annotated[str | None, typer.Option(help="the model's shape [1M]")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="corpus, sotu, moby-dick, tinystories, or a text file [corpus]"),
    ] = None,
    domain: Annotated[str | None, typer.Option(help="the corpus's world [village]")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="for the whole command [2, unless --steps or --tokens]")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="instead of minutes")] = None,
    tokens: Annotated[int | None, typer.Option(help="instead of minutes")] = None,
    batch: Annotated[int | None, typer.Option(help="sequences a step, over all ranks [8]")] = None,
    length: Annotated[int | None, typer.Option(help="tokens a sequence [192]")] = None,
    lr: Annotated[float | None, typer.Option(help="the highest learning rate [0.004]")] = None,
    accumulate: Annotated[
        int | None, typer.Option(help="microbatches that a rank's batch is cut into [1]")
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="float32, or bfloat16 matmuls [auto: the faster]")
    ] = None,
    recompute: Annotated[
        str | None,
        typer.Option(help="for less memory: selective, or full for a quarter more compute [none]"),
    ] = None,
    vocab: Annotated[int | None, typer.Option(help="tokens to learn from the text [512]")] = None,
    seed: Annotated[int | None, typer.Option(help="of weights, corpus and order [0]")] = None,
    out: Annotated[
        Path | None, typer.Option(help="the run's folder [runs/PRESET-DATA]", show_default=False)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the run in --out [the newest in runs/]")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, … [cuda if there is one]")] = None,
    ranks: Annotated[int | None, typer.Option(help="processes, data-parallel [1]")] = None,
    dp: Annotated[int | None, typer.Option(help="a mesh: ranks that split the rows")] = None,
    tp: Annotated[int | None, typer.Option(help="a mesh: ranks that split each matrix")] = None,
    pp: Annotated[int | None, typer.Option(help="a mesh: ranks that split the layers")] = None,
    cp: Annotated[int | None, typer.Option(help="a mesh: ranks that split each row")] = None,
    ep: Annotated[
        int | None, typer.Option(help="a mesh: ranks that split rows, and the experts")
    ] = None,
    sequence: Annotated[
        bool, typer.Option("--sequence", help="--tp also splits the tokens between its matrices")
    ] = False,
    schedule: Annotated[
        str | None,
        typer.Option(help="of --pp: gpipe, 1f1b, interleaved, zero-bubble, dualpipe [1f1b]"),
    ] = None,
    chunks: Annotated[int | None, typer.Option(help="stages a rank, if interleaved [2]")] = None,
) -> None:
    """Train a model on a text; saved once a minute, stopped by Ctrl-C, resumed bit for bit."""
    from minitrain.commands.train.options import find_run, new_folder, new_options, resumed_options

    started = time.time()
    given = {
        "preset": preset, "data": data, "domain": domain, "minutes": minutes, "steps": steps,
        "tokens": tokens, "batch": batch, "length": length, "lr": lr, "accumulate": accumulate,
        "dtype": dtype, "recompute": recompute, "vocab": vocab, "seed": seed,
        "ranks": ranks_outside(ranks), "dp": dp, "tp": tp, "pp": pp, "cp": cp, "ep": ep,
        "sequence": sequence or None, "schedule": schedule, "chunks": chunks,
    }  # fmt: skip
    if resume:
        folder = find_run(out)
        options = resumed_options(folder, given)
    else:
        options = new_options(given)
        folder = new_folder(out, options)
    with stop_file() as stop:
        text, interrupted = run(options, folder, resume, device, started, stop)
    if os.environ.get("RANK", "0") == "0":
        print(text)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def ranks_outside(typed: int | None) -> int | None:
    """How many processes torchrun or srun has started, unless --ranks says it."""
    started = os.environ.get("WORLD_SIZE") if "RANK" in os.environ else None
    return int(started) if typed is None and started else typed


def run(
    options: TrainOptions,
    folder: Path,
    resume: bool,
    device: str | None,
    started: float,
    stop: Path,
) -> tuple[str, bool]:
    """In this process, or on ranks of its own, or on those that torchrun started."""
    from minitrain.commands.train.run import run_rank
    from minitrain.commands.train.setup import Job
    from minitrain.ranks.errors import RankInputError
    from minitrain.ranks.launch import launch

    job = Job(options, folder, resume, device, started, stop)
    if options.ranks == 1 and not options.on_mesh and "RANK" not in os.environ:
        return run_rank(None, job)
    try:
        return launch(run_rank, job, ranks=options.ranks, timeout=LONGEST_SECONDS)[0]
    except RankInputError as error:
        raise InputError(error.headline.split("InputError: ", 1)[-1]) from error


@contextmanager
def stop_file() -> Iterator[Path]:
    """A path that comes to exist at Ctrl-C or SIGTERM: the run looks for it after each step."""
    with tempfile.TemporaryDirectory(prefix="minitrain-stop-") as folder:
        path = Path(folder) / "stop"
        with stop_on_signals(path):
            yield path
