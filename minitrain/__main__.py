"""`python -m minitrain COMMAND`: lab, train, watch, alerts, finetune, merge, export, quantize,
generate, serve, load, grade, build, bench, data, plan, doctor, assets."""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec
from typing import Annotated

if find_spec("typer") is None:  # dependencies are not installed yet
    from minitrain.apps.doctor import before_setup

    before_setup(sys.argv[1:])

import typer

from minitrain import __version__
from minitrain.apps.assets import assets
from minitrain.apps.bench import bench
from minitrain.apps.data import data
from minitrain.apps.doctor import doctor
from minitrain.apps.export import export, merge
from minitrain.apps.finetune.command import finetune
from minitrain.apps.finetune.options import FinetuneOptions
from minitrain.apps.generate import SamplingOptions, generate
from minitrain.apps.grade import grade
from minitrain.apps.lab import build, lab, update
from minitrain.apps.load.command import load
from minitrain.apps.load.options import LoadOptions
from minitrain.apps.options import Flag, add, group, help_of, typed
from minitrain.apps.plan.command import plan
from minitrain.apps.quantize import quantize
from minitrain.apps.serve.command import ServeOptions, serve
from minitrain.apps.train.command import train
from minitrain.apps.train.options import SinkOptions, TrainOptions
from minitrain.apps.watch.command import alerts, watch
from minitrain.errors import InputError
from minitrain.words import printable

UsageError = typer.BadParameter.__base__  # click's own, wherever typer keeps it


def minitrain(
    context: typer.Context,
    version: Annotated[bool, Flag("Show the version.")] = False,
) -> None:
    """The lab course in efficient and scaled training, from the command line.

    minitrain lab
    minitrain train --minutes 2
    """
    if version:
        print(f"minitrain {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


app = group("minitrain", "")
app.callback(invoke_without_command=True, **help_of(minitrain))(typed(minitrain))
COURSE = (lab, update, grade, build, bench, doctor, assets)
for command in (*COURSE, watch, alerts, merge, export, quantize):
    add(app, command)
add(app, train, SinkOptions, TrainOptions)
add(app, finetune, FinetuneOptions)
add(app, generate, SamplingOptions)
add(app, serve, ServeOptions)
add(app, load, LoadOptions)
app.add_typer(plan, name="plan")
app.add_typer(data, name="data")


def main() -> None:
    """Runs a command; an InputError prints one sentence on stderr and exits with 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name may hold what the terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(app(standalone_mode=False))
    except InputError as error:
        refuse(str(error))
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "python -m minitrain COMMAND"
        refuse(f"{error.format_message().rstrip('.')}: see {command} --help")


def refuse(sentence: str) -> None:
    """Prints one line, whatever characters an argument or a file's name holds."""
    print("error:", *printable(sentence, len(sentence)).split(), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
