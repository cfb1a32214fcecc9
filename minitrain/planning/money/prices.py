"""Prices of a chip-hour: always a range with a date and a provider, never one number.

`data/prices.csv` holds what pages printed, each with its source; for one chip on demand they differ
by up to 8.2 times (an H100, 1.49 to 12.29 dollars), and change by the month. A price of one's own
replaces the table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import median

from minitrain.errors import InputError
from minitrain.paths import data_dir
from minitrain.planning.hardware import number, read_table


@dataclass(frozen=True)
class Price:
    """US dollars per chip and hour."""

    low: float
    typical: float
    high: float
    source: str

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.typical <= self.high:
            raise InputError(
                f"price is {self.low} to {self.typical} to {self.high}: give 0 < low <= typical "
                "<= high, in dollars per chip and hour"
            )

    def times(self, hours: float) -> Price:
        """Dollars of so many chip-hours."""
        return Price(self.low * hours, self.typical * hours, self.high * hours, self.source)


@dataclass(frozen=True)
class Offer:
    """A row of the table."""

    chip: str
    provider: str
    kind: str  # on-demand or spot; purchase
    usd: float
    low: float
    high: float
    date: str
    source: str

    @property
    def seller(self) -> str:
        """The provider, or how many a row stands for."""
        several = self.provider.count(",") + 1
        return self.provider if several == 1 else f"{several} clouds"


def offers(chip: str | None = None, kind: str | None = None) -> list[Offer]:
    """The rows of `data/prices.csv`, of one chip and kind or of all."""
    rows = [
        offer(row, row["provider"], row["kind"], "usd_per_hour")
        for row in read_table(data_dir() / "prices.csv")
    ]
    return [r for r in rows if chip in (None, r.chip) and kind in (None, r.kind)]


def purchases(chip: str) -> list[Offer]:
    """The rows of `data/purchases.csv` for a chip: dollars to own one, once."""
    rows = read_table(data_dir() / "purchases.csv")
    return [offer(row, row["what"], "purchase", "usd") for row in rows if row["chip"] == chip]


def offer(row: dict[str, str], seller: str, kind: str, price: str) -> Offer:
    """A row whose dollars are in the column `price`."""
    usd = [number(row, field) for field in (price, "low", "high")]
    return Offer(row["chip"], seller, kind, *usd, row["date"], row["source"])


def price_of(chip: str, kind: str = "on-demand") -> Price:
    """The range and the median over all offers of a chip."""
    found = offers(chip, kind)
    if not found:
        priced = sorted({offer.chip for offer in offers(kind=kind)})
        raise InputError(
            f"data/prices.csv has no {kind} price for {chip}: give one (--price), or take one of "
            f"{', '.join(priced)}"
        )
    return range_of(found, f"{len(found)} {kind} prices of data/prices.csv{dated(found)}")


def purchase_price(chip: str) -> Price:
    """Purchase price of one chip, with its share of the node where the source has it."""
    found = purchases(chip)
    if not found:
        raise InputError(
            f"data/purchases.csv has no price for {chip}: give what one costs with its share of "
            "node and network (--purchase 40000), or take H100-SXM-80GB"
        )
    return range_of(found, f"{len(found)} prices of data/purchases.csv{dated(found)}")


def range_of(found: list[Offer], said: str) -> Price:
    """The range from the lowest to the highest, with the median between."""
    typical = median(offer.usd for offer in found)
    return Price(min(o.low for o in found), typical, max(o.high for o in found), said)


def dated(found: list[Offer]) -> str:
    """, 2024-08 to 2026-05: the months of those rows that say when."""
    months = sorted({m[0] for o in found if (m := re.search(r"20\d\d(-\d\d)?", o.date))})
    return ", " + " to ".join(dict.fromkeys((months[0], months[-1]))) if months else ", undated"
