"""`python -m minitrain COMMAND`: lab, train, watch, alerts, finetune, merge, export, quantize,
generate, serve, load, grade, build, bench, data, plan, doctor, assets, update."""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec

if find_spec("typer") is None:  # nothing is installed yet
    from minitrain.apps.doctor import before_setup

    before_setup(sys.argv[1:])

import typer

from minitrain.apps.alerts import alerts
from minitrain.apps.assets import assets
from minitrain.apps.bench import bench
from minitrain.apps.build import build
from minitrain.apps.data import data
from minitrain.apps.doctor import doctor
from minitrain.apps.export import export
from minitrain.apps.finetune.command import finetune
from minitrain.apps.finetune.options import FinetuneOptions
from minitrain.apps.generate.command import generate
from minitrain.apps.grade import grade
from minitrain.apps.kinds import typed
from minitrain.apps.lab import lab
from minitrain.apps.load.command import load
from minitrain.apps.merge import merge
from minitrain.apps.plan.command import plan
from minitrain.apps.quantize import quantize
from minitrain.apps.serve.command import serve
from minitrain.apps.train.command import train
from minitrain.apps.train.options import TrainOptions
from minitrain.apps.update import update
from minitrain.apps.watch.command import watch
from minitrain.errors import InputError
from minitrain.words import printable

UsageError = typer.BadParameter.__base__  # click's own, wherever typer keeps it

app = typer.Typer(
    name="minitrain",
    help="The lab course in efficient and scaled training, from the command line.",
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMMANDS = (
    *(lab, watch, alerts, merge, export, quantize, generate, serve),
    *(load, grade, build, bench, doctor, assets, update),
)
for command in COMMANDS:
    app.command()(typed(command))
app.command()(typed(train, TrainOptions))
app.command()(typed(finetune, FinetuneOptions))
app.add_typer(plan, name="plan")
app.add_typer(data, name="data")


def main() -> None:
    """Run a command; what a person can mend is one sentence on stderr and exit code 2."""
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
    """On one line, whatever was typed, or is the name of a file."""
    print("error:", *printable(sentence, len(sentence)).split(), file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
