"""Chips, how many of them, and from whom: every offer of a run, and the few worth a look.

For each chip and size the best plan is searched (`search.py`); its chip-hours, failures included,
are then multiplied by each price that was printed for the chip. A price that was asked for eight
chips is seldom that of a thousand: what the front says of clouds is where to ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from minitrain.errors import InputError
from minitrain.planning.hardware import find_chip
from minitrain.planning.money.cost import Choice, Cost, Site, cost_of
from minitrain.planning.money.goodput import Failures
from minitrain.planning.money.prices import Offer, Price, offers
from minitrain.planning.run import Model
from minitrain.planning.search import search
from minitrain.planning.step.step import Step


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
    """The fastest plan; None where nothing fits, or the batch does not divide."""
    try:
        found = search(
            training.model, chip, gpus, training.seq, training.batch, training.precision, best=1
        )
    except InputError:
        return None
    return found.steps[0]


def options_of(step: Step, tokens: float, kind: str, site: Site) -> Iterator[Option]:
    """One for each offer of the step's chip."""
    chip, gpus = step.run.chip.name, step.run.gpus
    for offer in offers(chip, kind):
        price = Price(offer.low, offer.usd, offer.high, offer.source)
        cost = cost_of(step, tokens, price, site, Failures())
        label = f"{gpus} {chip}, {offer.seller}"
        yield Option(label, cost.days, cost.usd.typical, offer, step, cost)


def all_options(
    training: Training, chips: Sequence[str], sizes: Sequence[int], kind: str, site: Site
) -> Iterator[list[Option]]:
    """Options for each chip and size as they are found; an empty list where nothing fits."""
    for chip in chips:
        find_chip(chip)
        if not offers(chip, kind):
            priced = ", ".join(sorted({offer.chip for offer in offers(kind=kind)}))
            raise InputError(f"data/prices.csv has no {kind} price for {chip}: it has {priced}")
    for chip in chips:
        for gpus in sizes:
            step = best_step(training, chip, gpus)
            yield list(options_of(step, training.tokens, kind, site)) if step else []
