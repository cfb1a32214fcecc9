"""`python -m minitrain plan front`: offers in days and dollars, and their Pareto front."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from minitrain.apps.kinds import one_of, real, several
from minitrain.apps.options import Option
from minitrain.apps.plan.options import (
    BATCH_TOKENS,
    CHIP,
    GPUS,
    TOKENS_PER_PARAMETER,
    Batch,
    Carbon,
    Json,
    ModelName,
    Picture,
    Precision,
    Pue,
    Seq,
    Tokens,
    save_figure,
    shape_of,
)
from minitrain.apps.tables import say, show_json, show_table
from minitrain.errors import InputError
from minitrain.planning.money.prices import Price
from minitrain.words import count_text

if TYPE_CHECKING:
    from minitrain.planning.money.cost import Option as Offered
    from minitrain.planning.money.cost import Training

DEADLINES = (7, 30, 90, 365)  # days, if none is given
ON_PICTURE = 14  # characters of a provider's name
KIND = one_of("kind of price", lambda: ("on-demand", "spot"))


@dataclass(frozen=True)
class FrontOptions:
    model: ModelName = "llama2-70b"
    chips: Annotated[list[str], Option(several(CHIP), "Names in data/hardware.csv.")] = (
        "A100-SXM-80GB,H100-SXM-80GB,H200-SXM,B200-SXM"
    )
    gpus: Annotated[list[int], Option(several(GPUS), "Numbers of chips.")] = "64,256,1024,4096"
    seq: Seq = 8192
    batch: Batch = None
    tokens: Tokens = None
    precision: Precision = "bf16"
    kind: Annotated[str, Option(KIND, "Prices on-demand or spot.")] = "on-demand"
    deadline: Annotated[
        float | None,
        Option(real(0.001, 1e6), "The cheapest within this many days.", "7, 30, 90, 365"),
    ] = None
    pue: Pue = 1.2
    carbon: Carbon = 400.0
    picture: Picture = None
    json: Json = False

    @property
    def training(self) -> Training:
        """A batch of about 4M tokens, the same for all clusters, and Chinchilla's tokens."""
        from minitrain.measure.parameters import parameter_count
        from minitrain.planning.money.cost import Training

        shape = shape_of(self.model)
        sequences = self.batch or 2 ** max(0, round(math.log2(BATCH_TOKENS / self.seq)))
        tokens = self.tokens or TOKENS_PER_PARAMETER * parameter_count(shape, self.seq)
        return Training(shape, self.seq, sequences, tokens, self.precision)


def front(**fields: Any) -> None:
    """Set chips, sizes and clouds against each other in days and dollars.

    minitrain plan front --model llama3-8b --gpus 16,64
    minitrain plan front --deadline 30 --picture front.png
    """
    from minitrain.planning.money.cost import pareto

    asked = FrontOptions(**fields)
    training = asked.training
    options = gathered(asked, training)
    deadlines = DEADLINES if asked.deadline is None else (asked.deadline,)
    best = {days: chosen(options, days, asked) for days in deadlines}
    on_front = pareto(options)
    if asked.picture:
        draw(asked, training, options, on_front)
    if asked.json:
        show_json(as_plain(asked, training, options, on_front, best))
    else:
        print_front(asked, training, options, on_front, best)


def gathered(asked: FrontOptions, training: Training) -> list[Offered]:
    from tqdm import tqdm

    from minitrain.planning.money.cost import Site, all_options

    site, sizes = Site(asked.pue, asked.carbon), sorted(asked.gpus)
    found = all_options(training, asked.chips, sizes, asked.kind, site)
    total = len(asked.chips) * len(sizes)
    bar = tqdm(found, total=total, unit="cluster", leave=False, disable=None)  # not into a file
    options = [option for some in bar for option in some]
    if not options:
        raise InputError(
            f"{asked.model} fits none of {', '.join(asked.chips)} with {sizes} gpus and a "
            f"batch of {training.batch} sequences: give more gpus, or sizes that divide the batch"
        )
    return options


def chosen(options: list[Offered], days: float, asked: FrontOptions) -> Offered | None:
    """The cheapest offer within `days`; None if none meets a default deadline, else InputError."""
    from minitrain.planning.money.cost import cheapest_by

    if asked.deadline is None and min(option.days for option in options) > days:
        return None
    return cheapest_by(options, days)


def as_plain(
    asked: FrontOptions,
    training: Training,
    options: list[Offered],
    front: list[Offered],
    best: dict,
) -> dict:
    return {
        "model": asked.model,
        "tokens": training.tokens,
        "batch": training.batch,
        "offers": len(options),
        "front": [plain(option) for option in front],
        "by_deadline": {f"{days:g}": option and plain(option) for days, option in best.items()},
    }


def plain(option: Offered) -> dict:
    from minitrain.planning.search import plan_in_words

    cost, offer = option.cost, option.offer
    return {
        "gpus": option.step.run.gpus, "chip": offer.chip, "provider": offer.provider,
        "date": offer.date, "plan": plan_in_words(option.step.run.plan), "days": option.days,
        "usd": option.usd, "usd_low": cost.usd.low, "usd_high": cost.usd.high,
        "usd_per_hour": offer.usd, "kwh": cost.kwh, "tonnes_co2": cost.tonnes_co2,
        "goodput": cost.goodput,
    }  # fmt: skip


def print_front(
    asked: FrontOptions,
    training: Training,
    options: list[Offered],
    front: list[Offered],
    best: dict,
) -> None:
    title = (
        f"What none of {len(options)} offers beats: {asked.model}, {training.tokens:.3g} "
        f"tokens, {training.batch} sequences of {training.seq} a step"
    )
    show_table(map(cells, front), title, left=["chips", "from", "priced"])
    say(*deadline_lines(best), *chip_lines(asked, options))
    say(
        "Prices are what pages printed (data/prices.csv): ask for a quote before you believe one; "
        "power at the chips' limit; failures as often as Llama 3's."
    )


def cells(option: Offered) -> dict[str, str]:
    cost, offer = option.cost, option.offer
    power = ["?", "?"]
    if cost.kwh is not None:
        power = [f"{cost.kwh / 1000:,.3g}", f"{cost.tonnes_co2:,.3g}"]
    return {
        "chips": f"{option.step.run.gpus} {offer.chip}",
        "from": offer.seller,
        "priced": short_date(offer.date),
        "days": f"{option.days:,.3g}",
        "cost": money(cost.usd),
        "MWh": power[0],
        "t CO2": power[1],
    }


def short_date(date: str) -> str:
    """Its first word, if that is a date."""
    return date.split()[0] if date[:2] == "20" else "undated"


def money(usd: Price) -> str:
    """$9.98k, with its range where the page gave one."""
    if usd.low == usd.high:
        return f"${count_text(usd.typical)}"
    return f"${count_text(usd.typical)} ({count_text(usd.low)} to {count_text(usd.high)})"


def deadline_lines(best: dict[float, Offered | None]) -> list[str]:
    from minitrain.planning.search import plan_in_words

    said = []
    for days, option in best.items():
        text = "nothing is done"
        if option:
            text = f"{option.label}: ${option.usd:,.0f}, {plan_in_words(option.step.run.plan)}"
        said.append(f"in {days:g} days: {text}")
    return said


def chip_lines(asked: FrontOptions, options: list[Offered]) -> list[str]:
    """Each chip's range over clouds and sizes."""
    said = []
    for chip in asked.chips:
        usd = [o.usd for o in options if o.offer.chip == chip]
        days = [o.days for o in options if o.offer.chip == chip]
        if usd:
            said.append(
                f"{chip}: ${min(usd):,.0f} to ${max(usd):,.0f} over clouds and sizes, "
                f"{min(days):,.3g} to {max(days):,.3g} days"
            )
        else:
            said.append(f"{chip}: fits none of {asked.gpus} gpus")
    return said


def draw(
    asked: FrontOptions, training: Training, options: list[Offered], front: list[Offered]
) -> None:
    """One point per offer, days on x and dollars on y; the front is a line."""
    from matplotlib.ticker import LogLocator, NullFormatter

    from minitrain.lab.drawing.colors import COLORS, INK
    from minitrain.lab.drawing.figures import MARKERS, canvas

    with canvas(width=10.0, height=5.2) as (figure, ax):
        for i, chip in enumerate(asked.chips):
            own = [o for o in options if o.offer.chip == chip]
            color, marker = COLORS[i % len(COLORS)], MARKERS[i % len(MARKERS)]
            ax.plot([o.days for o in own], [o.usd for o in own], marker, color=color, label=chip)
        days, usd = [o.days for o in front], [o.usd for o in front]
        ax.step(days, usd, where="post", color=INK, label="no other beats these")
        for option in (front[0], front[-1]):
            text = f"{option.step.run.gpus}, {option.offer.seller[:ON_PICTURE]}"
            ax.annotate(
                text, (option.days, option.usd), xytext=(5, -12), textcoords="offset points"
            )
        if asked.deadline:
            ax.axvline(asked.deadline, linestyle="--", color=INK, linewidth=1)
        ax.set(xscale="log", yscale="log", xlabel="days", ylabel="dollars")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(lambda value, _: count_text(value))
            axis.set_minor_formatter(NullFormatter())
        ax.set_title(f"{asked.model} on {count_text(training.tokens)} tokens: each point an offer")
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        save_figure(figure, asked.picture)
