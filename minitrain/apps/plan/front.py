"""The output of `plan front`: offers in days and dollars, and those that none beats."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from minitrain.apps.plan.best import BATCH_TOKENS, TOKENS_PER_PARAMETER
from minitrain.apps.plan.show import say, show_json, show_table
from minitrain.errors import InputError
from minitrain.measure.parameters import parameter_count
from minitrain.planning.money.cost import Option, Site, Training, all_options, cheapest_by, pareto
from minitrain.planning.money.prices import Price
from minitrain.planning.run import Model
from minitrain.planning.search import plan_in_words
from minitrain.words import count_text

DEADLINES = (7, 30, 90, 365)  # days, where none is given
ON_PICTURE = 14  # letters of a provider's name


@dataclass(frozen=True)
class Asked:
    name: str
    chips: list[str]
    sizes: list[int]
    kind: str
    deadline: float | None
    picture: Path | None


def training_of(
    model: Model, seq: int, batch: int | None, tokens: float | None, precision: str
) -> Training:
    """A batch of about 4M tokens, the same for all clusters, and Chinchilla's tokens."""
    sequences = batch or 2 ** max(0, round(math.log2(BATCH_TOKENS / seq)))
    trained = tokens or TOKENS_PER_PARAMETER * parameter_count(model, seq)
    return Training(model, seq, sequences, trained, precision)


def report(asked: Asked, training: Training, site: Site, json: bool) -> None:
    options = gathered(asked, training, site)
    front = pareto(options)
    best = {days: chosen(options, days, asked) for days in deadlines(asked)}
    if asked.picture:
        draw(asked, training, options, front)
    if json:
        show_json(as_plain(asked, training, options, front, best))
    else:
        print_front(asked, training, options, front, best)


def gathered(asked: Asked, training: Training, site: Site) -> list[Option]:
    from tqdm import tqdm

    found = all_options(training, asked.chips, asked.sizes, asked.kind, site)
    total = len(asked.chips) * len(asked.sizes)
    bar = tqdm(found, total=total, unit="cluster", leave=False, disable=None)  # not into a file
    options = [option for some in bar for option in some]
    if not options:
        raise InputError(
            f"{asked.name} fits none of {', '.join(asked.chips)} with {asked.sizes} gpus and a "
            f"batch of {training.batch} sequences: give more gpus, or sizes that divide the batch"
        )
    return options


def deadlines(asked: Asked) -> tuple[float, ...]:
    return DEADLINES if asked.deadline is None else (asked.deadline,)


def chosen(options: list[Option], days: float, asked: Asked) -> Option | None:
    """None where nothing is done by one of the usual deadlines; one that was given is an error."""
    if asked.deadline is None and min(option.days for option in options) > days:
        return None
    return cheapest_by(options, days)


def as_plain(
    asked: Asked, training: Training, options: list[Option], front: list[Option], best: dict
) -> dict:
    return {
        "model": asked.name,
        "tokens": training.tokens,
        "batch": training.batch,
        "offers": len(options),
        "front": [plain(option) for option in front],
        "by_deadline": {f"{days:g}": option and plain(option) for days, option in best.items()},
    }


def plain(option: Option) -> dict:
    cost, offer = option.cost, option.offer
    return {
        "gpus": option.step.run.gpus, "chip": offer.chip, "provider": offer.provider,
        "date": offer.date, "plan": plan_in_words(option.step.run.plan), "days": option.days,
        "usd": option.usd, "usd_low": cost.usd.low, "usd_high": cost.usd.high,
        "usd_per_hour": offer.usd, "kwh": cost.kwh, "tonnes_co2": cost.tonnes_co2,
        "goodput": cost.goodput,
    }  # fmt: skip


def print_front(
    asked: Asked, training: Training, options: list[Option], front: list[Option], best: dict
) -> None:
    title = (
        f"What none of {len(options)} offers beats: {asked.name}, {training.tokens:.3g} "
        f"tokens, {training.batch} sequences of {training.seq} a step"
    )
    show_table(map(cells, front), title, left=["chips", "from", "priced"])
    say(*deadline_lines(best), *chip_lines(asked, options))
    say(
        "Prices are what pages printed (data/prices.csv): ask for a quote before you believe one; "
        "power at the chips' limit; failures as often as Llama 3's."
    )


def cells(option: Option) -> dict[str, str]:
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
    """Its first word, unless that is no date."""
    return date.split()[0] if date[:2] == "20" else "undated"


def money(usd: Price) -> str:
    """$9.98k, with its range where the page gave one."""
    if usd.low == usd.high:
        return f"${count_text(usd.typical)}"
    return f"${count_text(usd.typical)} ({count_text(usd.low)} to {count_text(usd.high)})"


def deadline_lines(best: dict[float, Option | None]) -> list[str]:
    said = []
    for days, option in best.items():
        text = "nothing is done"
        if option:
            text = f"{option.label}: ${option.usd:,.0f}, {plan_in_words(option.step.run.plan)}"
        said.append(f"in {days:g} days: {text}")
    return said


def chip_lines(asked: Asked, options: list[Option]) -> list[str]:
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
            said.append(f"{chip}: fits none of {asked.sizes} gpus")
    return said


def draw(asked: Asked, training: Training, options: list[Option], front: list[Option]) -> None:
    """Each offer a point, days across and dollars up; the front is a line."""
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
        ax.set_title(f"{asked.name} on {count_text(training.tokens)} tokens: each point an offer")
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
        saved(figure, asked.picture)


def saved(figure: Figure, file: Path) -> None:
    try:
        figure.savefig(file, dpi=150, facecolor="white")
    except OSError as error:
        raise InputError(f"{file} cannot be written ({error.strerror}): give another") from None
