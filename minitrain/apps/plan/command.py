"""`python -m minitrain plan`: the best plan of a run; `plan front | own | predict | validate |
swing`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minitrain.apps.kinds import (
    COUNT,
    FILE,
    PICTURE,
    Argument,
    Kind,
    Option,
    one_of,
    real,
    several,
    typed,
    whole,
)
from minitrain.model.config import PRESETS, preset
from minitrain.planning.hardware import chips, find_chip
from minitrain.planning.money.prices import Price, offers, price_of, purchase_price
from minitrain.planning.run import Model


def prices(source: str) -> Kind:
    """Dollars, or a range of them with the geometric mean as what is typical."""

    def read(text: str) -> Price:
        low, _, high = text.partition("-")
        ends = USD.read(low), USD.read(high or low)
        if ends[0] > ends[1]:
            raise ValueError
        return Price(ends[0], (ends[0] * ends[1]) ** 0.5, ends[1], source)

    return Kind("LOW-HIGH", "dollars, 2.5, or a range with the lower end first, 2-4", read)


USD = real(1e-4, 1e9)
GPUS = whole(1, 1_000_000)
CHIP = one_of("chip", chips)

ModelName = Annotated[str, Option(one_of("model preset", lambda: PRESETS), "a preset's name")]
ChipName = Annotated[str, Option(CHIP, "a name of data/hardware.csv")]
Seq = Annotated[int, Option(whole(1, 10**8), "tokens a sequence")]
Batch = Annotated[int | None, Option(COUNT, "sequences a step", "4M tokens")]
Tokens = Annotated[float | None, Option(real(1, 1e18), "tokens to train on", "20 a parameter")]
Precision = Annotated[
    str, Option(one_of("precision", lambda: ("bf16", "fp16", "fp8")), "bf16, fp16 or fp8")
]
Pue = Annotated[float, Option(real(1, 10), "all power over the machines' power")]
Carbon = Annotated[float, Option(real(0, 10_000), "grams of CO2 a kWh")]
Picture = Annotated[Path | None, Option(PICTURE, "also draw it: .png, .pdf or .svg")]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout, in place of tables")]

plan = typer.Typer(
    help="Memory, time, money and energy of a training run in advance.",
    add_completion=False,
)


def best_plan(
    context: typer.Context,
    model: ModelName = "llama3-8b",
    chip: ChipName = "H100-SXM-80GB",
    gpus: Annotated[int, Option(GPUS, "how many chips")] = 64,
    seq: Seq = 8192,
    batch: Batch = None,
    tokens: Tokens = None,
    precision: Precision = "bf16",
    price: Annotated[
        Price | None, Option(prices("--price"), "dollars a chip-hour", "data/prices.csv")
    ] = None,
    pue: Pue = 1.2,
    carbon: Carbon = 400.0,
    rank: Annotated[
        str,
        Option(one_of("order", lambda: ("time", "cost")), "by time, or cost with fewer chips"),
    ] = "time",
    json: Json = False,
) -> None:
    """The best ways to cut a training run over a cluster, what they cost, and why others lose."""
    if context.invoked_subcommand is not None:
        return
    from minitrain.apps.plan.best import Question, answer, print_answer
    from minitrain.planning.money.cost import Site

    question = Question(
        model=shape_of(model), name=model, chip=chip, gpus=gpus, seq=seq, batch=batch,
        tokens=tokens, precision=precision, price=price or listed_price(chip),
        site=Site(pue, carbon), by_cost=rank == "cost",
    )  # fmt: skip
    print_answer(question, answer(question), json)


def front(
    model: ModelName = "llama2-70b",
    chips: Annotated[list[str], Option(several(CHIP), "names of data/hardware.csv")] = (
        "A100-SXM-80GB,H100-SXM-80GB,H200-SXM,B200-SXM"
    ),
    gpus: Annotated[list[int], Option(several(GPUS), "how many chips")] = "64,256,1024,4096",
    seq: Seq = 8192,
    batch: Batch = None,
    tokens: Tokens = None,
    precision: Precision = "bf16",
    kind: Annotated[
        str,
        Option(one_of("kind of price", lambda: ("on-demand", "spot")), "on-demand or spot prices"),
    ] = "on-demand",
    deadline: Annotated[
        float | None,
        Option(real(0.001, 1e6), "the cheapest that is done in so many days", "7, 30, 90, 365"),
    ] = None,
    pue: Pue = 1.2,
    carbon: Carbon = 400.0,
    picture: Picture = None,
    json: Json = False,
) -> None:
    """Days against dollars over chips, sizes and clouds: what none beats."""
    from minitrain.apps.plan.front import Asked, report, training_of
    from minitrain.planning.money.cost import Site

    training = training_of(shape_of(model), seq, batch, tokens, precision)
    asked = Asked(model, chips, sorted(gpus), kind, deadline, picture)
    report(asked, training, Site(pue, carbon), json)


def own(
    chip: ChipName = "H100-SXM-80GB",
    purchase: Annotated[
        Price | None, Option(prices("--purchase"), "dollars to own one", "data/purchases.csv")
    ] = None,
    rent: Annotated[
        Price | None, Option(prices("--rent"), "dollars a chip-hour", "data/prices.csv")
    ] = None,
    busy: Annotated[float, Option(real(0.001, 1), "share of its life in which it works")] = 0.8,
    years: Annotated[float, Option(real(0.01, 100), "its life in years")] = 4.0,
    power: Annotated[float, Option(real(0, 1000), "dollars a kWh")] = 0.1,
    pue: Pue = 1.2,
    upkeep: Annotated[float, Option(real(0, 1), "share of the purchase, each year")] = 0.1,
    picture: Picture = None,
    json: Json = False,
) -> None:
    """Own or rent a chip: how busy must it be, and when is it paid off?"""
    from minitrain.apps.plan.own import Comparison, report

    bought, rented = purchase or purchase_price(chip), rent or price_of(chip)
    comparison = Comparison(find_chip(chip), bought, rented, busy, years, power, pue, upkeep)
    report(comparison, picture, json)


def predict(
    runs: Annotated[Path, Argument(FILE, "a CSV file, a row for each run")], json: Json = False
) -> None:
    """Step time, utilisation and memory of each run of a file."""
    from minitrain.apps.plan.predict import as_json, as_table

    (as_json if json else as_table)(runs)


def validate(json: Json = False) -> None:
    """The planner against every run of data/published_runs.csv."""
    from minitrain.apps.plan.validate import report

    report(json)


def swing(
    gpus: Annotated[int, Option(GPUS, "chips that step together")] = 16_384,
    compute: Annotated[float, Option(real(0.01, 1e4), "seconds of a step that compute")] = 8.0,
    wait: Annotated[float, Option(real(0.01, 1e4), "seconds of a step that wait")] = 2.0,
    json: Json = False,
) -> None:
    """What a grid sees of a job, emulated: megawatts up and down with each step, and two cures."""
    from minitrain.apps.plan.swing import report

    report(gpus, compute, wait, json)


plan.callback(invoke_without_command=True)(typed(best_plan))
for command in (front, own, predict, validate, swing):
    plan.command()(typed(command))


def shape_of(name: str) -> Model:
    """A preset of `model.config` as the planner's shape."""
    config = preset(name)
    return Model(
        config.layers, config.hidden_size, config.heads, config.kv_heads, config.ffn_size,
        config.vocab_size, gated=True, experts=config.experts,
        experts_per_token=config.experts_per_token if config.experts else 0,
        moe_ffn=config.expert_ffn_size if config.experts else 0,
        shared_experts=config.shared_experts, head_size=config.head_size, tied=config.tied,
        qkv_bias=config.qkv_bias, window=config.window,
    )  # fmt: skip


def listed_price(chip: str) -> Price | None:
    """The table's, where it has one."""
    return price_of(chip) if offers(chip, "on-demand") else None
