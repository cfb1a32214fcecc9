"""`python -m minitrain bench [NAME …] [--json FILE]`: ours and the peers', measured alternately."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from minitrain.apps.kinds import NEW_FILE, one_of, whole
from minitrain.apps.options import Argument, Option

if TYPE_CHECKING:
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
        list[str] | None, Argument(BENCH, f"Any of {', '.join(NAMES)}; else all.", many=True)
    ] = None,
    json: Annotated[Path | None, Option(NEW_FILE, "Also write the rows to this file.")] = None,
    repeats: Annotated[
        int | None,
        Option(whole(1, 1000), "Repeats of each contender, in turn.", "the bench's own"),
    ] = None,
) -> None:
    """Measure each technique beside the peer that one would use instead.

    minitrain bench
    minitrain bench ddp zero --repeats 5 --json rows.json
    """
    report(measured_rows(chosen_cases(names, repeats)), json)


def chosen_cases(names: list[str] | None, repeats: int | None = None) -> list[Case]:
    """The cases of the named benches, or of all that have a peer here."""
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
    """Measures case by case, with a progress bar on stderr, and prints each ratio as it is
    known."""
    from tqdm import tqdm

    rows: list[Row] = []
    for case in tqdm(cases, unit="case", leave=False, disable=None):
        rows.append(case.row())
        line = f"{case.name}: {rows[-1].ratio:.2f} x {case.peer_name}"
        tqdm.write(line, file=sys.stderr)
    return rows


def report(rows: list[Row], json: Path | None = None) -> None:
    """Prints the table and the losses with their reasons, and writes the file."""
    from minitrain.apps.tables import say, show_table
    from minitrain.bench.case import as_json

    title = "Medians of repeats taken in turn; we lose where the ratio is over 1"
    show_table(map(cells, rows), title, left=("name", "unit", "peer's name and version"))
    say(verdict(rows))
    if json is not None:
        json.write_text(as_json(rows))
        print(f"{len(rows)} rows written to {json}")


def cells(row: Row) -> dict[str, str]:
    return {
        "name": row.name,
        "ours": f"{row.ours:.3g}",
        "peer": f"{row.peer:.3g}",
        "ratio": f"{row.ratio:.2f} ± {row.spread / 2 * row.ratio:.2f}",
        "unit": row.unit,
        "peer's name and version": row.peer_name,
    }


def verdict(rows: list[Row]) -> str:
    """The number of wins, and each loss with its reason."""
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
