"""`python -m minitrain plan`: the best plan of a run; `plan front | own | predict | validate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minitrain.errors import InputError

if TYPE_CHECKING:
    from minitrain.planning.money.cost import Site
    from minitrain.planning.money.prices import Price
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
    from minitrain.commands.plan.best import Question, answer, print_answer

    if rank not in ("time", "cost"):
        raise InputError(f"--rank is '{rank}': it must be time or cost")
    question = Question(
        model=shape_of(model), name=model, chip=chip, gpus=gpus, seq=seq, batch=batch,
        tokens=tokens, precision=precision, price=price_given(price, chip),
        site=site_of(pue, carbon), by_cost=rank == "cost",
    )  # fmt: skip
    print_answer(question, answer(question), json)


@plan.command()
def front(
    model: Annotated[str, typer.Option(help="a preset's name, llama3-8b for one")] = "llama2-70b",
    chips: Annotated[
        str, typer.Option(help="names of data/hardware.csv, with commas between")
    ] = "A100-SXM-80GB,H100-SXM-80GB,H200-SXM,B200-SXM",
    gpus: Annotated[str, typer.Option(help="how many, with commas between")] = "64,256,1024,4096",
    seq: Annotated[int, typer.Option(help="tokens a sequence")] = 8192,
    batch: Annotated[int | None, typer.Option(help="sequences a step [4M tokens]")] = None,
    tokens: Annotated[float | None, typer.Option(help="to train on [20 a parameter]")] = None,
    precision: Annotated[str, typer.Option(help="bf16, fp16 or fp8")] = "bf16",
    kind: Annotated[str, typer.Option(help="on-demand or spot prices")] = "on-demand",
    deadline: Annotated[
        float | None, typer.Option(help="days; what is the cheapest that is done by then?")
    ] = None,
    pue: Annotated[float, typer.Option(help="all power over the machines' power")] = 1.2,
    carbon: Annotated[float, typer.Option(help="grams of CO2 per kWh")] = 400.0,
    picture: Annotated[Path | None, typer.Option(help="a PNG of all offers to write")] = None,
    json: Annotated[bool, typer.Option("--json", help="as JSON, on stdout")] = False,
) -> None:
    """Days against dollars over chips, how many, and clouds: what no other choice beats."""
    from minitrain.commands.plan.front import Asked, report, training_of

    training = training_of(shape_of(model), seq, batch, tokens, precision)
    asked = Asked(model, names_in(chips), numbers_in(gpus), kind, deadline, picture)
    report(asked, training, site_of(pue, carbon), json)


@plan.command()
def own(
    chip: Annotated[str, typer.Option(help="a name of data/hardware.csv")] = "H100-SXM-80GB",
    purchase: Annotated[
        str | None, typer.Option(help="dollars to own one, or a range [data/purchases.csv]")
    ] = None,
    rent: Annotated[
        str | None, typer.Option(help="dollars a chip-hour, 2.5 or 2-4 [data/prices.csv]")
    ] = None,
    busy: Annotated[float, typer.Option(help="share of its life in which it works")] = 0.8,
    years: Annotated[float, typer.Option(help="its life")] = 4.0,
    power: Annotated[float, typer.Option(help="dollars a kWh")] = 0.1,
    pue: Annotated[float, typer.Option(help="all power over the machines' power")] = 1.2,
    upkeep: Annotated[float, typer.Option(help="share of the purchase, each year")] = 0.1,
    picture: Annotated[Path | None, typer.Option(help="a PNG of both over time to write")] = None,
    json: Annotated[bool, typer.Option("--json", help="as JSON, on stdout")] = False,
) -> None:
    """Own or rent a chip: how busy must it be, and when has it paid for itself?"""
    from minitrain.commands.plan.own import Comparison, report
    from minitrain.planning.hardware import find_chip
    from minitrain.planning.money.prices import price_of, purchase_price

    bought = range_given(purchase, "--purchase") if purchase else purchase_price(chip)
    rented = range_given(rent, "--rent") if rent else price_of(chip)
    comparison = Comparison(find_chip(chip), bought, rented, busy, years, power, pue, upkeep)
    report(comparison, picture, json)


@plan.command()
def predict(
    runs: Annotated[Path, typer.Argument(help="a CSV, a row for each run", metavar="RUNS.csv")],
    json: Annotated[bool, typer.Option("--json", help="a JSON array on stdout")] = False,
) -> None:
    """Step time, utilisation and memory of each run of a file."""
    from minitrain.commands.plan.predict import as_json, as_table

    (as_json if json else as_table)(runs)


@plan.command()
def validate(
    json: Annotated[bool, typer.Option("--json", help="as JSON, on stdout")] = False,
) -> None:
    """The planner against every published run of data/published_runs.csv."""
    from minitrain.commands.plan.validate import report

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
    from minitrain.planning.money.prices import offers, price_of

    if text is None:
        return price_of(chip) if offers(chip, "on-demand") else None
    return range_given(text, "--price")


def range_given(text: str, option: str) -> Price:
    """2.5, or 2-4 with the geometric mean as what is typical."""
    from minitrain.planning.money.prices import Price

    try:
        low, _, high = (part.strip() for part in text.partition("-"))
        ends = float(low), float(high or low)
    except ValueError:
        raise InputError(f"{option} is '{text}': give dollars, 2.5, or a range, 2-4") from None
    if not 0 < ends[0] <= ends[1] < float("inf"):
        raise InputError(f"{option} is '{text}': give dollars over 0, the lower ones first")
    return Price(ends[0], (ends[0] * ends[1]) ** 0.5, ends[1], option)


def names_in(text: str) -> list[str]:
    """Chips of a list with commas; an unknown one is refused by its name."""
    from minitrain.planning.hardware import find_chip

    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise InputError("--chips is empty: give names of data/hardware.csv, commas between")
    return [find_chip(name).name for name in names]


def numbers_in(text: str) -> list[int]:
    sizes = [part.strip() for part in text.split(",")]
    if not all(size.isdigit() and int(size) for size in sizes):
        raise InputError(f"--gpus is '{text}': give whole numbers of 1 or more, 64,256,1024")
    return sorted({int(size) for size in sizes})


def site_of(pue: float, carbon: float) -> Site:
    from minitrain.planning.money.cost import Site

    return Site(pue=pue, grams_per_kwh=carbon)
