"""`python -m minitrain finetune --model MODEL --data TEXT`: adapts a model to a new text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from minitrain.apps.finetune.options import FinetuneOptions, Job, resumed
from minitrain.apps.kinds import DEVICE, FOLDER
from minitrain.apps.models import MODEL, MODEL_HELP
from minitrain.apps.options import Flag, Option
from minitrain.apps.train.command import INTERRUPTED, is_typed, stop_file
from minitrain.apps.train.runs import new_folder
from minitrain.errors import InputError


def finetune(
    context: typer.Context,
    model: Annotated[str | None, Option(MODEL, MODEL_HELP)] = None,
    out: Annotated[Path | None, Option(FOLDER, "The run's folder.", "runs/MODEL-METHOD")] = None,
    resume: Annotated[bool, Flag("Resume the run in --out.")] = False,
    device: Annotated[
        str | None, Option(DEVICE, "One of cpu, cuda, mps and xpu.", "cuda if there is one")
    ] = None,
    **fields: Any,
) -> None:
    """Fine-tune a model on a text. Ctrl-C saves it; --resume continues bit for bit.

    minitrain finetune --model stories15M --data sotu
    minitrain finetune --model runs/1M-corpus --data sea --method dora
    """
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
        name = f"{Path(model).name[:80] or 'model'}-{options.method}"
        folder = new_folder(out, name)
    with stop_file() as stop:
        text, interrupted = run(Job(model, options, folder, resume, device, stop))
    print(text)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def run(job: Job) -> tuple[str, bool]:
    from minitrain.apps.finetune.run import run

    return run(job)
