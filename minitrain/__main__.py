"""`python -m minitrain lab | train | export | grade | build | bench | plan | doctor | assets`."""

from __future__ import annotations

import sys

import typer

from minitrain.commands.assets import assets
from minitrain.commands.bench import bench
from minitrain.commands.build import build
from minitrain.commands.doctor import doctor
from minitrain.commands.export import export
from minitrain.commands.grade import grade
from minitrain.commands.lab import lab
from minitrain.commands.plan.command import plan
from minitrain.commands.train.command import train
from minitrain.errors import InputError

app = typer.Typer(
    name="minitrain",
    help="The lab course in efficient and scaled training, from the command line.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (lab, train, export, grade, build, bench, doctor, assets):
    app.command()(command)
app.add_typer(plan, name="plan")


def main() -> None:
    """Run a command; what a person can mend is one sentence on stderr and exit code 2."""
    try:
        app()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
