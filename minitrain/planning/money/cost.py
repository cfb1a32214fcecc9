"""The cost of a run: hours, money with its range, energy, carbon; and which choices nothing beats.

    chip-hours = tokens / tokens per second · chips / goodput
    energy     = chip-hours · watts · PUE          at the chip's power limit
    carbon     = energy · grams per kWh            from 30 (France) to over 700 (coal)

Watts at the limit are an upper bound: published CO2 figures are mostly made so (hours x limit), and
are no measurement. Own or rent is `ownership.py`; all chips, clouds and sizes at once, `front.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from minitrain.errors import InputError
from minitrain.planning.hardware import Chip
from minitrain.planning.money.goodput import Failures, goodput
from minitrain.planning.money.prices import Price
from minitrain.planning.step.step import Step

PUE = 1.2  # of a modern data centre: 1.08 (Google's fleet, 2026) to 1.54 (mean of 2025, Uptime)
GRAMS_PER_KWH = 400.0  # of a mixed grid; 57 in France (BLOOM)


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
    usd: Price | None  # of the whole run; None where no price is known
    kwh: float | None  # None where the chip's power is not known
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


@dataclass(frozen=True)
class Choice:
    """A chip, how many, from whom: what it takes in days and dollars."""

    label: str
    days: float
    usd: float


AnyChoice = TypeVar("AnyChoice", bound=Choice)


def pareto(choices: Sequence[AnyChoice]) -> list[AnyChoice]:
    """Those that no other beats in both days and dollars, fastest first: one sort, one sweep."""
    front: list[AnyChoice] = []
    for choice in sorted(choices, key=lambda c: (c.days, c.usd)):
        if not front or choice.usd < front[-1].usd:
            front.append(choice)
    return front


def cheapest_by(choices: Sequence[AnyChoice], deadline_days: float) -> AnyChoice:
    """The cheapest that is done in time."""
    in_time = [choice for choice in choices if choice.days <= deadline_days]
    if not in_time:
        least = min(choices, key=lambda c: c.days, default=None)
        hint = f"the fastest takes {least.days:.1f}: {least.label}" if least else "no choice given"
        raise InputError(f"nothing is done in {deadline_days:g} days: {hint}; more chips, or time")
    return min(in_time, key=lambda c: c.usd)
