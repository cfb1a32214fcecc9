"""`python -m minitrain bench [NAME …] [--json FILE]`: ours beside the peers, measured in turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minitrain.errors import InputError, unknown_name

if TYPE_CHECKING:
    from rich.table import Table

    from minitrain.bench.case import Case, Row

NAMES = (
    "launch",
    "collectives",
    "training",
    "ddp",
    "tensor",
    "pipeline",
    "attention",
    "recompute",
    "zero",
    "experts",
    "precision",
    "optimizers",
)


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help=f"{', '.join(NAMES)}; none: all", metavar="[NAME …]")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="also write the rows to this file")] = None,
    repeats: Annotated[
        int | None,
        typer.Option(help="repeats of each contender, in turn [default: the bench's own]"),
    ] = None,
) -> None:
    """Measure each technique beside the peer you would use instead."""
    if repeats is not None and repeats < 1:
        raise InputError(
            f"--repeats is {repeats}: a median needs at least 1, and 5 to mean something"
        )
    if json is not None and not json.resolve().parent.is_dir():
        raise InputError(f"{json} cannot be written: its folder does not exist; make it first")
    report(measured_rows(chosen_cases(names, repeats)), json)


def chosen_cases(names: list[str] | None, repeats: int | None = None) -> list[Case]:
    """The cases of the benches named, each name checked before anything is measured."""
    from importlib import import_module

    for name in names or ():
        if name not in NAMES:
            raise unknown_name("bench", name, NAMES)
    options = {} if repeats is None else {"repeats": repeats}
    cases: list[Case] = []
    for name in dict.fromkeys(names or NAMES):
        cases += import_module(f"minitrain.bench.{name}").cases(**options)
    return cases


def measured_rows(cases: list[Case]) -> list[Row]:
    """Measures one case after the other; on stderr a bar, and each ratio as soon as it is known."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    rows: list[Row] = []
    with Progress(
        *columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True
    ) as progress:
        task = progress.add_task("", total=len(cases))
        for case in cases:
            progress.update(task, description=case.name)
            rows.append(case.row())
            progress.console.print(f"{case.name}: {rows[-1].ratio:.2f} x {case.peer_name}")
            progress.advance(task)
    return rows


def report(rows: list[Row], json: Path | None = None) -> None:
    """Prints the table, says in words where we lose and why, and writes the file."""
    from rich.console import Console

    from minitrain.bench.case import as_json

    console = Console()
    console.print(table(rows))
    console.print(verdict(rows), soft_wrap=True, highlight=False, markup=False)
    if json is not None:
        json.write_text(as_json(rows))
        console.print(f"{len(rows)} rows written to {json}", soft_wrap=True, highlight=False)


def table(rows: list[Row]) -> Table:
    from rich.table import Table

    out = Table(title="Medians of repeats taken in turn; a ratio over 1 says that we lose")
    for name in ("name", "ours", "peer", "ratio", "unit", "peer's name and version"):
        out.add_column(name, justify="right" if name in ("ours", "peer", "ratio") else "left")
    for row in rows:
        half = row.spread / 2 * row.ratio
        ratio = f"{row.ratio:.2f} ± {half:.2f}"
        style = "bold" if row.lost else None
        costs = (f"{row.ours:.3g}", f"{row.peer:.3g}")
        out.add_row(row.name, *costs, ratio, row.unit, row.peer_name, style=style)
    return out


def verdict(rows: list[Row]) -> str:
    """How many we win, and each loss in words, with the reasons beside them."""
    losses = [row for row in rows if row.lost]
    lines = [f"We win {len(rows) - len(losses)} of {len(rows)}."]
    for reason in dict.fromkeys(row.reason for row in losses):
        lines += [loss_in_words(row) for row in losses if row.reason == reason]
        lines.append(f"  Why: {reason}.")
    return "\n".join(lines)


def loss_in_words(row: Row) -> str:
    within = row.ratio - 1 <= row.spread / 2 * row.ratio
    noise = ", which is within the spread of the repeats" if within else ""
    return f"We lose {row.name}: {row.ratio:.2f} x the cost of {row.peer_name}{noise}."
