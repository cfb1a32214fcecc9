"""Own or rent: for what share of its life must a chip be busy, and when has it paid for itself?

    rent(t) = rent · busy · t
    own(t)  = purchase (1 + upkeep · t / year) + power price · watts · PUE · busy · t

Own if the chips would be busy for more than `break_even` of their life. `purchase` counts a chip
with its share of node, network and building; upkeep (people, repairs, room) is a share of it a
year; power is paid only while it runs. What it can be sold for at the end is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from minitrain.errors import InputError
from minitrain.planning.money.cost import PUE

YEAR_HOURS = 365.25 * 24


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
        """Power of one busy hour."""
        return self.watts / 1000 * self.pue * self.usd_per_kwh

    def usd(self, years: float, busy: float) -> float:
        """Spent by then."""
        fixed = self.purchase_usd * (1 + self.upkeep_per_year * years)
        return fixed + self.running_usd * busy * years * YEAR_HOURS

    def usd_per_busy_hour(self, busy: float) -> float:
        return self.usd(self.years, checked_share(busy)) / (busy * self.years * YEAR_HOURS)


def break_even(owning: Owning, rent_usd_per_hour: float) -> float:
    """Share of its life that a chip must be busy to be as cheap as a rented one; over 1: rent."""
    if rent_usd_per_hour <= 0:
        raise InputError(f"rent is {rent_usd_per_hour:g}: give dollars a chip-hour, over 0")
    fixed = owning.usd(owning.years, busy=0.0)
    saved = rent_usd_per_hour - owning.running_usd
    return math.inf if saved <= 0 else fixed / (owning.years * YEAR_HOURS * saved)


def months_to_pay(owning: Owning, rent_usd_per_hour: float, busy: float) -> float:
    """Until owning has cost less than renting; inf where it never does."""
    saved = (rent_usd_per_hour - owning.running_usd) * checked_share(busy) * YEAR_HOURS
    saved -= owning.upkeep_per_year * owning.purchase_usd  # a year
    return 12 * owning.purchase_usd / saved if saved > 0 else math.inf


def checked_share(busy: float) -> float:
    if not 0 < busy <= 1:
        raise InputError(f"busy is {busy:g}: give the share of its life, over 0 and up to 1")
    return busy
