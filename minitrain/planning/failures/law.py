"""Failure rates by component, fitted to Llama 3's 419 unexpected interruptions.

    rate of a component = its count / chip-hours              the most likely one, if failures come
    between failures    = exponential, mean 1 / (rate x chips)     independently (Poisson's law)

16,384 H100 in 54 days were 21.2 million chip-hours: one interruption in 50,677. The paper prints
counts and no times, so the rate is fitted and the exponential is assumed; what a wear-in (a Weibull
of shape below 1) would change can be tried with `shape`. Table 5 of arXiv 2407.21783. Lab: e12.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from minitrain.errors import InputError
from minitrain.paths import data_dir
from minitrain.planning.hardware import read_table

LLAMA3_DAYS, LLAMA3_CHIPS, LLAMA3_PLANNED = 54, 16384, 47
HARDWARE = ("GPU", "Host", "Network")  # a node that failed so is replaced; the others start again


@dataclass(frozen=True)
class Cause:
    """A cause of interruptions and its rate, `per_chip_hour`."""

    component: str
    category: str
    per_chip_hour: float

    @property
    def takes_node(self) -> bool:
        return self.category in HARDWARE


@dataclass(frozen=True)
class Law:
    """Interruption rates by cause, and the law of the times between them: exponential where `shape`
    is 1."""

    causes: tuple[Cause, ...]
    shape: float = 1.0

    def __post_init__(self) -> None:
        if not self.causes or self.shape <= 0:
            raise InputError(
                f"{len(self.causes)} causes, shape {self.shape}: give one cause or more, and a "
                "shape over 0, 1 for an exponential"
            )

    @property
    def chip_hours(self) -> float:
        """Between two interruptions of one chip."""
        return 1 / sum(cause.per_chip_hour for cause in self.causes)

    def between(self, chips: int) -> float:
        """Mean seconds between interruptions of `chips` chips together."""
        return self.chip_hours * 3600 / chips

    def gaps(self, chips: int, count: int, seed: int = 0) -> np.ndarray:
        """(count,) seconds from one interruption to the next."""
        scale = self.between(chips) / math.gamma(1 + 1 / self.shape)
        return scale * np.random.default_rng(seed).weibull(self.shape, count)

    def draw(self, count: int, seed: int = 0) -> list[Cause]:
        """Draws the cause of each interruption by the causes' rates."""
        rates = np.array([cause.per_chip_hour for cause in self.causes])
        drawn = np.random.default_rng([seed, 1]).choice(len(rates), count, p=rates / rates.sum())
        return [self.causes[index] for index in drawn]


def llama3_law() -> Law:
    """The law fitted to `data/llama3_interruptions.csv`."""
    hours = LLAMA3_DAYS * 24 * LLAMA3_CHIPS
    rows = read_table(data_dir() / "llama3_interruptions.csv")
    return Law(tuple(Cause(r["component"], r["category"], int(r["count"]) / hours) for r in rows))
