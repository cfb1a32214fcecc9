"""`python -m minitrain bench [NAME …] [--json FILE]`: ours beside the peers, measured in turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minitrain.apps.kinds import NEW_FILE, Argument, Option, one_of, whole

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
    "checkpoint",
    "experts",
    "precision",
    "quantization",
    "nf4",
    "gptq",
    "weight_only",
    "optimizers",
    "finetuning",
    "data",
    "speculation",
    "inference",
    "disaggregated",
)
BENCH = one_of("bench", lambda: NAMES)


def bench(
    names: Annotated[
        list[str] | None, Argument(BENCH, f"{', '.join(NAMES)}; without any, all", many=True)
    ] = None,
    json: Annotated[Path | None, Option(NEW_FILE, "also write the rows to this file")] = None,
    repeats: Annotated[
        int | None,
        Option(whole(1, 1000), "repeats of each contender, in turn", "the bench's own"),
    ] = None,
) -> None:
    """Measure each technique beside the peer you would use instead."""
    report(measured_rows(chosen_cases(names, repeats)), json)


def chosen_cases(names: list[str] | None, repeats: int | None = None) -> list[Case]:
    """The cases of the benches named, or of all that have a peer here."""
    from importlib import import_module

    from minitrain.errors import InputError

    options = {} if repeats is None else {"repeats": repeats}
    cases: list[Case] = []
    for name in dict.fromkeys(names or NAMES):
        found = import_module(f"minitrain.bench.{name}").cases(**options)
        if names and not found:
            raise InputError(
                f"bench {name} has no peer here: make bench-{name} makes an environment for it"
            )
        cases += found
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
        print(f"{len(rows)} rows written to {json}")


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
    """The number of wins, and each loss in words, with its reason."""
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
