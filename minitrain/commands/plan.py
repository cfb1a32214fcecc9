"""`python -m minitrain plan`: a plan for a model on a cluster; `plan predict`; `plan validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minitrain.errors import InputError

if TYPE_CHECKING:
    from minitrain.planning.cost import Site
    from minitrain.planning.prices import Price
    from minitrain.planning.run import Model

plan = typer.Typer(
    help="Memory, time, money and energy of a training run, before it is paid for.",
    add_completion=False,
)


@plan.callback(invoke_without_command=True)
def best_plan(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="a preset's name, llama3-70b for one")] = "llama3-8b",
    chip: Annotated[str, typer.Option(help="a name of data/hardware.csv")] = "H100-SXM-80GB",
    gpus: Annotated[int, typer.Option(help="how many")] = 64,
    seq: Annotated[int, typer.Option(help="tokens a sequence")] = 8192,
    batch: Annotated[int | None, typer.Option(help="sequences a step [4M tokens]")] = None,
    tokens: Annotated[float | None, typer.Option(help="to train on [20 a parameter]")] = None,
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp8")] = "bf16",
    price: Annotated[
        str | None, typer.Option(help="dollars a chip-hour, 2.5 or 2-4 [data/prices.csv]")
    ] = None,
    pue: Annotated[float, typer.Option(help="all power over the machines' power")] = 1.2,
    carbon: Annotated[float, typer.Option(help="grams of CO2 per kWh")] = 400.0,
    rank: Annotated[
        str, typer.Option(help="by time or by cost (which may use fewer gpus)")
    ] = "time",
    json: Annotated[bool, typer.Option("--json", help="as JSON, on stdout")] = False,
) -> None:
    """The best ways to cut a training run over a cluster, what they cost, and why others lose."""
    if context.invoked_subcommand is not None:
        return
    from minitrain.commands.plan_report import Question, answer, print_answer

    if rank not in ("time", "cost"):
        raise InputError(f"--rank is '{rank}': it must be time or cost")
    question = Question(
        model=shape_of(model), name=model, chip=chip, gpus=gpus, seq=seq, batch=batch,
        tokens=tokens, precision=precision, price=price_given(price, chip),
        site=site_of(pue, carbon), by_cost=rank == "cost",
    )  # fmt: skip
    print_answer(question, answer(question), json)


@plan.command()
def predict(
    runs: Annotated[Path, typer.Argument(help="a CSV, a row for each run", metavar="RUNS.csv")],
    json: Annotated[bool, typer.Option("--json", help="a JSON array on stdout")] = False,
) -> None:
    """Step time, utilisation and memory of each run of a file."""
    from minitrain.commands.plan_predict import as_json, as_table

    (as_json if json else as_table)(runs)


@plan.command()
def validate(
    json: Annotated[bool, typer.Option("--json", help="as JSON, on stdout")] = False,
) -> None:
    """The planner against every published run of data/published_runs.csv."""
    from minitrain.commands.plan_validate import report

    report(json)


def shape_of(name: str) -> Model:
    """A preset of `model.config` as the planner's shape."""
    from minitrain.model.config import preset
    from minitrain.planning.run import Model

    config = preset(name)
    return Model(
        config.layers, config.hidden_size, config.heads, config.kv_heads, config.ffn_size,
        config.vocab_size, gated=True, experts=config.experts,
        experts_per_token=config.experts_per_token if config.experts else 0,
        moe_ffn=config.expert_ffn_size if config.experts else 0,
        shared_experts=config.shared_experts,
    )  # fmt: skip


def price_given(text: str | None, chip: str) -> Price | None:
    """The option's price or range; else the table's; None where the table has none."""
    from minitrain.planning.prices import Price, offers, price_of

    if text is None:
        return price_of(chip) if offers(chip, "on-demand") else None
    try:
        low, _, high = (part.strip() for part in text.partition("-"))
        ends = float(low), float(high or low)
    except ValueError:
        raise InputError(f"--price is '{text}': give dollars, 2.5, or a range, 2-4") from None
    return Price(ends[0], (ends[0] * ends[1]) ** 0.5, ends[1], "--price")


def site_of(pue: float, carbon: float) -> Site:
    from minitrain.planning.cost import Site

    return Site(pue=pue, grams_per_kwh=carbon)
