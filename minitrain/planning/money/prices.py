"""Prices of a chip-hour: always a range with a date and a provider, never one number; own or rent.

`data/prices.csv` holds published prices, each with its source; for one chip on demand they differ
by up to 8.2 times (an H100, 1.49 to 12.29 dollars), and change by the month. `--price`
replaces the table.

    rent(t) = rent · busy · t
    own(t)  = purchase (1 + upkeep · t / year) + power price · watts · PUE · busy · t

Own if the chips would be busy for more than `break_even` of their life. `purchase` is a chip with
its share of node, network and building; upkeep (people, repairs, room) is a share of it a year;
power is paid only while it runs. Resale value is left out.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from statistics import median

from minitrain.errors import InputError
from minitrain.paths import data_dir
from minitrain.planning.hardware import number, read_table

PUE = 1.2  # of a modern data centre: 1.08 (Google's fleet, 2026) to 1.54 (mean of 2025, Uptime)
YEAR_HOURS = 365.25 * 24


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
        """The price of `hours` chip-hours, in dollars."""
        return Price(self.low * hours, self.typical * hours, self.high * hours, self.source)


@dataclass(frozen=True)
class Offer:
    """A row of the price table."""

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
        """The provider, or the number of them that a row stands for."""
        several = self.provider.count(",") + 1
        return self.provider if several == 1 else f"{several} clouds"


def offers(chip: str | None = None, kind: str | None = None) -> list[Offer]:
    """The rows of `data/prices.csv`, filtered by chip and kind if given."""
    rows = [
        offer(row, row["provider"], row["kind"], "usd_per_hour")
        for row in read_table(data_dir() / "prices.csv")
    ]
    return [r for r in rows if chip in (None, r.chip) and kind in (None, r.kind)]


def purchases(chip: str) -> list[Offer]:
    """The rows of `data/purchases.csv` for a chip: one-time purchase dollars."""
    rows = read_table(data_dir() / "purchases.csv")
    return [offer(row, row["what"], "purchase", "usd") for row in rows if row["chip"] == chip]


def offer(row: dict[str, str], seller: str, kind: str, price: str) -> Offer:
    """An offer from a row, with the price in column `price`."""
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
    """Purchase price of one chip, with its share of the node if the source gives it."""
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
    """The date range of the dated rows, such as ", 2024-08 to 2026-05"."""
    months = sorted({m[0] for o in found if (m := re.search(r"20\d\d(-\d\d)?", o.date))})
    return ", " + " to ".join(dict.fromkeys((months[0], months[-1]))) if months else ", undated"


# ---- own or rent ----


@dataclass(frozen=True)
class Owning:
    """Cost of owning one chip."""

    purchase_usd: float
    watts: float
    years: float = 4.0
    usd_per_kwh: float = 0.1
    pue: float = PUE
    upkeep_per_year: float = 0.1

    def __post_init__(self) -> None:
        if min(self.purchase_usd, self.years) <= 0:
            raise InputError(
                f"own or rent over {self.years:g} years at {self.purchase_usd:g} dollars: give a "
                "purchase price and years over 0"
            )
        if self.pue < 1 or min(self.usd_per_kwh, self.upkeep_per_year, self.watts) < 0:
            raise InputError(
                f"PUE {self.pue:g}, {self.usd_per_kwh:g} dollars a kWh, upkeep "
                f"{self.upkeep_per_year:g}: give a PUE of 1 or more, the others 0 or more"
            )

    @property
    def running_usd(self) -> float:
        """Power cost of one busy hour."""
        return self.watts / 1000 * self.pue * self.usd_per_kwh

    def usd(self, years: float, busy: float) -> float:
        """Dollars spent after `years`."""
        fixed = self.purchase_usd * (1 + self.upkeep_per_year * years)
        return fixed + self.running_usd * busy * years * YEAR_HOURS

    def usd_per_busy_hour(self, busy: float) -> float:
        return self.usd(self.years, checked_share(busy)) / (busy * self.years * YEAR_HOURS)


def break_even(owning: Owning, rent_usd_per_hour: float) -> float:
    """Share of its life that a chip must be busy to be as cheap as renting; over 1: rent."""
    if rent_usd_per_hour <= 0:
        raise InputError(f"rent is {rent_usd_per_hour:g}: give dollars a chip-hour, over 0")
    fixed = owning.usd(owning.years, busy=0.0)
    saved = rent_usd_per_hour - owning.running_usd
    return math.inf if saved <= 0 else fixed / (owning.years * YEAR_HOURS * saved)


def months_to_pay(owning: Owning, rent_usd_per_hour: float, busy: float) -> float:
    """Months until owning is cheaper than renting; inf if never."""
    saved = (rent_usd_per_hour - owning.running_usd) * checked_share(busy) * YEAR_HOURS
    saved -= owning.upkeep_per_year * owning.purchase_usd  # per year
    return 12 * owning.purchase_usd / saved if saved > 0 else math.inf


def checked_share(busy: float) -> float:
    if not 0 < busy <= 1:
        raise InputError(f"busy is {busy:g}: give the share of its life, over 0 and up to 1")
    return busy
