"""The cost of a run: hours, money with its range, energy, carbon; and the Pareto front of choices.

    chip-hours = tokens / tokens per second · chips / goodput
    energy     = chip-hours · watts · PUE          at the chip's power limit
    carbon     = energy · grams per kWh            from 30 (France) to over 700 (coal)

Watts at the limit are an upper bound: most published CO2 figures are computed this way (hours x
limit), not measured. Goodput is the share of time that trains despite failures, at Young's interval
between saves (failures/intervals.py); failures/replay.py has what that formula leaves out.

The front: for each chip and size, the best plan's chip-hours times every published price of the
chip. A quote for eight chips seldom holds for a thousand: take the front's prices as a list
of providers to ask. Own or rent is in `prices.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from minitrain.errors import InputError
from minitrain.planning.failures.intervals import lost_share, young_interval
from minitrain.planning.failures.replay import LLAMA3_CHIPS, LLAMA3_DAYS
from minitrain.planning.hardware import Chip, find_chip
from minitrain.planning.money.prices import PUE, Offer, Price, offers
from minitrain.planning.run import Model
from minitrain.planning.search import search
from minitrain.planning.step.step import Step

LLAMA3_CHIP_HOURS = LLAMA3_DAYS * 24 * LLAMA3_CHIPS / 419
GRAMS_PER_KWH = 400.0  # a mixed grid; 57 in France (BLOOM)


@dataclass(frozen=True)
class Site:
    """The site of a run: its power overhead and its grid's carbon."""

    pue: float = PUE
    grams_per_kwh: float = GRAMS_PER_KWH

    def __post_init__(self) -> None:
        if self.pue < 1:
            raise InputError(f"PUE is {self.pue}: all power over the machines' power is 1 or more")
        if self.grams_per_kwh < 0:
            raise InputError(f"grams per kWh is {self.grams_per_kwh}: give 0 or more")


@dataclass(frozen=True)
class Cost:
    days: float
    chip_hours: float
    usd: Price | None  # of the whole run; None if no price is known
    kwh: float | None  # None if the chip's power is unknown
    tonnes_co2: float | None
    goodput: float


def chip_hours(tokens: float, step: Step, good: float = 1.0) -> float:
    return tokens / step.tokens_per_second * step.run.gpus / 3600 / good


def cost_of(
    step: Step, tokens: float, price: Price | None = None, site: Site = Site(),
    failures: Failures | None = None,
) -> Cost:  # fmt: skip
    """Cost of training on `tokens` with this plan; failures make it longer."""
    if tokens <= 0:
        raise InputError(f"tokens is {tokens:g}: give how many to train on, 15e12 for one")
    good = goodput(failures, step.run.gpus) if failures else 1.0
    hours = chip_hours(tokens, step, good)
    kwh = energy_kwh(hours, step.run.chip, site) if step.run.chip.watts else None
    carbon = None if kwh is None else kwh * site.grams_per_kwh / 1e6
    usd = price and price.times(hours)
    days = hours / step.run.gpus / 24
    return Cost(days, hours, usd, kwh, carbon, good)


def energy_kwh(hours: float, chip: Chip, site: Site) -> float:
    if chip.watts is None:
        raise InputError(f"{chip.name} has no tdp_W in data/hardware.csv: add it, with its source")
    return hours * chip.watts / 1000 * site.pue


# ---- goodput ----


@dataclass(frozen=True)
class Failures:
    """`chip_hours` between two failures of one chip; seconds that a save stops training; seconds
    from a failure to the first new step."""

    chip_hours: float = LLAMA3_CHIP_HOURS
    save_seconds: float = 15.0
    restart_seconds: float = 300.0

    def __post_init__(self) -> None:
        if self.chip_hours <= 0 or self.save_seconds < 0 or self.restart_seconds < 0:
            raise InputError(
                f"failures every {self.chip_hours} chip-hours, saves of {self.save_seconds} s, "
                f"restarts of {self.restart_seconds} s: give hours over 0 and seconds of 0 or more"
            )

    def between(self, chips: int) -> float:
        """M: seconds between failures of `chips` chips together."""
        return self.chip_hours * 3600 / chips


def best_interval(failures: Failures, chips: int) -> float:
    """Seconds between saves, by Young's formula."""
    return young_interval(failures.save_seconds, failures.between(chips))


def goodput(failures: Failures, chips: int, interval: float | None = None) -> float:
    """The share of time spent training, at the best interval unless one is given."""
    between = failures.between(chips)
    interval = interval or best_interval(failures, chips)
    lost = lost_share(failures.save_seconds, failures.restart_seconds, between, interval)
    if lost >= 1:
        raise InputError(
            f"{chips} chips fail every {between / 60:.0f} minutes, and saves and restarts take "
            "longer: nothing would be trained; save faster, restart faster, or use fewer chips"
        )
    return 1 - lost


# ---- choices of chip, number and provider ----


@dataclass(frozen=True)
class Choice:
    """A chip, a number of them and a provider, with the days and dollars they take."""

    label: str
    days: float
    usd: float


AnyChoice = TypeVar("AnyChoice", bound=Choice)


def pareto(choices: Sequence[AnyChoice]) -> list[AnyChoice]:
    """The choices that none beats in both days and dollars, fastest first; one sort and sweep."""
    front: list[AnyChoice] = []
    for choice in sorted(choices, key=lambda c: (c.days, c.usd)):
        if not front or choice.usd < front[-1].usd:
            front.append(choice)
    return front


def cheapest_by(choices: Sequence[AnyChoice], deadline_days: float) -> AnyChoice:
    """The cheapest choice that meets the deadline."""
    in_time = [choice for choice in choices if choice.days <= deadline_days]
    if not in_time:
        least = min(choices, key=lambda c: c.days, default=None)
        hint = f"the fastest takes {least.days:.1f}: {least.label}" if least else "no choice given"
        raise InputError(f"nothing is done in {deadline_days:g} days: {hint}; more chips, or time")
    return min(in_time, key=lambda c: c.usd)


@dataclass(frozen=True)
class Option(Choice):
    """A choice, with where its days and dollars come from."""

    offer: Offer
    step: Step
    cost: Cost


@dataclass(frozen=True)
class Training:
    """The training job: the model and its data, independent of the hardware."""

    model: Model
    seq: int
    batch: int
    tokens: float
    precision: str = "bf16"


def best_step(training: Training, chip: str, gpus: int) -> Step | None:
    """The fastest plan; None if nothing fits or the batch does not divide."""
    try:
        found = search(
            training.model, chip, gpus, training.seq, training.batch, training.precision, best=1
        )
    except InputError:
        return None
    return found.steps[0]


def options_of(step: Step, tokens: float, kind: str, site: Site) -> Iterator[Option]:
    """One option for each offer of the step's chip."""
    chip, gpus = step.run.chip.name, step.run.gpus
    for offer in offers(chip, kind):
        price = Price(offer.low, offer.usd, offer.high, offer.source)
        cost = cost_of(step, tokens, price, site, Failures())
        label = f"{gpus} {chip}, {offer.seller}"
        yield Option(label, cost.days, cost.usd.typical, offer, step, cost)


def all_options(
    training: Training, chips: Sequence[str], sizes: Sequence[int], kind: str, site: Site
) -> Iterator[list[Option]]:
    """Yields the options of each chip and size; an empty list if nothing fits."""
    for chip in chips:
        find_chip(chip)
        if not offers(chip, kind):
            priced = ", ".join(sorted({offer.chip for offer in offers(kind=kind)}))
            raise InputError(f"data/prices.csv has no {kind} price for {chip}: it has {priced}")
    for chip in chips:
        for gpus in sizes:
            step = best_step(training, chip, gpus)
            yield list(options_of(step, training.tokens, kind, site)) if step else []
