"""`python -m minitrain finetune --model MODEL --data TEXT`: a model learns something new."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from minitrain.apps.finetune.options import FinetuneOptions, Job, resumed
from minitrain.apps.kinds import DEVICE, FOLDER, Option
from minitrain.apps.models import MODEL, MODEL_HELP
from minitrain.apps.train.command import INTERRUPTED, is_typed, stop_file
from minitrain.errors import InputError


def finetune(
    context: typer.Context,
    model: Annotated[str | None, Option(MODEL, MODEL_HELP)] = None,
    out: Annotated[Path | None, Option(FOLDER, "the run's folder", "runs/MODEL-METHOD")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in --out")] = False,
    device: Annotated[
        str | None, Option(DEVICE, "cpu, cuda, mps or xpu", "cuda if there is one")
    ] = None,
    **fields: Any,
) -> None:
    """Fine-tune a model on a text; Ctrl-C saves, --resume goes on bit for bit."""
    given = {name: value for name, value in fields.items() if is_typed(context, name)}
    if resume:
        if out is None:
            raise InputError("--resume needs the run's folder: give it with --out")
        model, options = resumed(out, model, given)
        folder = out
    else:
        if model is None:
            raise InputError(f"--model is missing: give {MODEL_HELP}")
        options = FinetuneOptions(**given)
        folder = new_folder(out, model, options)
    with stop_file() as stop:
        text, interrupted = run(Job(model, options, folder, resume, device, stop))
    print(text)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def run(job: Job) -> tuple[str, bool]:
    from minitrain.apps.finetune.run import run

    return run(job)


def new_folder(out: Path | None, model: str, options: FinetuneOptions) -> Path:
    """`out` if nothing is there, or the first free runs/MODEL-METHOD[-2]."""
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(
                f"{out} is there already and is not empty: go on with it by --resume, or give "
                "--out another name"
            )
        return out
    stem = f"{Path(model).name[:80] or 'model'}-{options.method}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 10_000))]
    return next(Path("runs") / name for name in names if not (Path("runs") / name).exists())
