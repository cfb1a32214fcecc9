"""The output of `plan own`: rent against ownership, with the range of both prices."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from minitrain.apps.plan.front import saved
from minitrain.apps.plan.show import say, show_json, show_table
from minitrain.errors import InputError
from minitrain.planning.hardware import Chip
from minitrain.planning.money.prices import (
    YEAR_HOURS,
    Owning,
    Price,
    break_even,
    months_to_pay,
)

ENDS = ("low", "typical", "high")


@dataclass(frozen=True)
class Comparison:
    chip: Chip
    purchase: Price
    rent: Price
    busy: float
    years: float
    usd_per_kwh: float
    pue: float
    upkeep: float

    def __post_init__(self) -> None:
        if self.chip.watts is None:
            raise InputError(
                f"{self.chip.name} has no power (tdp_W) in data/hardware.csv: take another chip"
            )

    def owning(self, purchase: float) -> Owning:
        return Owning(
            purchase, self.chip.watts, self.years, self.usd_per_kwh, self.pue, self.upkeep
        )

    def rows(self) -> list[dict]:
        """Each purchase price against each rent."""
        return [self.row(bought, rented) for bought in ENDS for rented in ENDS]

    def row(self, bought: str, rented: str) -> dict:
        purchase, rent = getattr(self.purchase, bought), getattr(self.rent, rented)
        owning = self.owning(purchase)
        months = months_to_pay(owning, rent, self.busy)
        return {
            "purchase_usd": purchase,
            "rent_usd_per_hour": rent,
            "own_usd_per_hour": owning.usd_per_busy_hour(self.busy),
            "break_even_busy": break_even(owning, rent),
            "months_to_pay": None if math.isinf(months) else months,
        }


def report(comparison: Comparison, picture: Path | None, json: bool) -> None:
    rows = comparison.rows()
    if picture:
        draw(comparison, picture)
    if json:
        sources = {"purchase": asdict(comparison.purchase), "rent": asdict(comparison.rent)}
        plain = {"chip": comparison.chip.name, "busy": comparison.busy, **sources, "rows": rows}
        show_json(plain)
        return
    print_table(comparison, rows)


def print_table(comparison: Comparison, rows: list[dict]) -> None:
    c = comparison
    title = f"{c.chip.name}, busy {c.busy:.0%} of {c.years:g} years: own or rent"
    show_table([cells(row, c.busy) for row in rows], title)
    say(
        f"Prices: {c.purchase.source}; {c.rent.source}. Power {c.usd_per_kwh:g} dollars a kWh at "
        f"{c.chip.watts:g} W and PUE {c.pue:g}, upkeep {c.upkeep:.0%} a year, nothing left "
        "at the end."
    )


def cells(row: dict, busy: float) -> dict[str, str]:
    share, months = row["break_even_busy"], row["months_to_pay"]
    return {
        "to own one": f"${row['purchase_usd']:,.0f}",
        "own, an hour": f"${row['own_usd_per_hour']:.2f}",
        "rent, an hour": f"${row['rent_usd_per_hour']:.2f}",
        "pays from busy": "never" if share > 1 else f"{share:.0%}",
        "paid after": "never" if months is None else f"{months:.0f} months",
        "": "own" if share <= busy else "rent",
    }


def draw(comparison: Comparison, file: Path) -> None:
    """Dollars of one chip over the years: owning with its range, three rents."""
    from minitrain.lab.drawing.colors import COLORS
    from minitrain.lab.drawing.figures import canvas, lines

    c = comparison
    years = [c.years * i / 40 for i in range(41)]
    own = {
        end: [c.owning(getattr(c.purchase, end)).usd(y, c.busy) / 1e3 for y in years]
        for end in ENDS
    }
    top = 2.2 * max(own["high"])
    rent = {}
    for usd in (getattr(c.rent, end) for end in ENDS):
        until = [y for y in years if usd * c.busy * YEAR_HOURS * y / 1e3 <= top]
        rent[f"rent ${usd:.2f}"] = (until, [usd * c.busy * YEAR_HOURS * y / 1e3 for y in until])
    with canvas(width=8.0, height=4.8) as (figure, ax):
        lines(
            {"own": (years, own["typical"])},
            theory=rent,
            x="years", y="thousand dollars a chip", ax=ax,
            title=f"{c.chip.name}, busy {c.busy:.0%} of the time",
        )  # fmt: skip
        ax.lines[0].set_marker("")
        ax.fill_between(years, own["low"], own["high"], color=COLORS[0], alpha=0.15, linewidth=0)
        ax.set(xlim=(0, c.years), ylim=(0, 1.05 * top))
        saved(figure, file)
