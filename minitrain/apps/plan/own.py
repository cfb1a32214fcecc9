"""`python -m minitrain plan own`: rent against ownership, with the range of both prices."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from minitrain.apps.kinds import real
from minitrain.apps.options import Option
from minitrain.apps.plan.options import ChipName, Json, Picture, Pue, prices, save_figure
from minitrain.apps.tables import say, show_json, show_table
from minitrain.errors import InputError
from minitrain.planning.hardware import find_chip
from minitrain.planning.money.prices import (
    YEAR_HOURS,
    Owning,
    Price,
    break_even,
    months_to_pay,
    price_of,
    purchase_price,
)

ENDS = ("low", "typical", "high")


@dataclass(frozen=True)
class OwnOptions:
    chip: ChipName = "H100-SXM-80GB"
    purchase: Annotated[
        Price | None, Option(prices("--purchase"), "Dollars to buy one.", "data/purchases.csv")
    ] = None
    rent: Annotated[
        Price | None, Option(prices("--rent"), "Dollars a chip-hour.", "data/prices.csv")
    ] = None
    busy: Annotated[float, Option(real(0.001, 1), "The share of its life that it works.")] = 0.8
    years: Annotated[float, Option(real(0.01, 100), "Its life in years.")] = 4.0
    power: Annotated[float, Option(real(0, 1000), "Dollars a kWh.")] = 0.1
    pue: Pue = 1.2
    upkeep: Annotated[float, Option(real(0, 1), "Share of the purchase price, each year.")] = 0.1
    picture: Picture = None
    json: Json = False

    @property
    def watts(self) -> float:
        watts = find_chip(self.chip).watts
        if watts is None:
            raise InputError(
                f"{self.chip} has no power (tdp_W) in data/hardware.csv: take another chip"
            )
        return watts

    def owning(self, purchase: float) -> Owning:
        return Owning(purchase, self.watts, self.years, self.power, self.pue, self.upkeep)

    def row(self, purchase: float, rent: float) -> dict:
        owning = self.owning(purchase)
        months = months_to_pay(owning, rent, self.busy)
        return {
            "purchase_usd": purchase,
            "rent_usd_per_hour": rent,
            "own_usd_per_hour": owning.usd_per_busy_hour(self.busy),
            "break_even_busy": break_even(owning, rent),
            "months_to_pay": None if math.isinf(months) else months,
        }


def own(**fields: Any) -> None:
    """Compare owning a chip with renting one: how busy it must be, and when it is paid off.

    minitrain plan own --chip H100-SXM-80GB --busy 0.5
    minitrain plan own --purchase 40000 --rent 2-4 --picture own.png
    """
    asked = OwnOptions(**fields)
    bought, rented = (
        asked.purchase or purchase_price(asked.chip),
        asked.rent or price_of(asked.chip),
    )
    options = replace(asked, purchase=bought, rent=rented)
    pairs = [(getattr(bought, one), getattr(rented, other)) for one in ENDS for other in ENDS]
    rows = [options.row(*pair) for pair in pairs]
    if options.picture:
        draw(options, options.picture)
    if options.json:
        sources = {"purchase": asdict(bought), "rent": asdict(rented)}
        show_json({"chip": options.chip, "busy": options.busy, **sources, "rows": rows})
    else:
        print_table(options, rows)


def print_table(options: OwnOptions, rows: list[dict]) -> None:
    c = options
    title = f"{c.chip}, busy {c.busy:.0%} of {c.years:g} years: own or rent"
    show_table([cells(row, c.busy) for row in rows], title)
    say(
        f"Prices: {c.purchase.source}; {c.rent.source}. Power {c.power:g} dollars a kWh at "
        f"{c.watts:g} W and PUE {c.pue:g}, upkeep {c.upkeep:.0%} a year, nothing left "
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


def draw(options: OwnOptions, file: Path) -> None:
    """Dollars of one chip over the years: owning with its range, three rents."""
    from minitrain.lab.drawing.colors import COLORS
    from minitrain.lab.drawing.figures import canvas, lines

    c = options
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
            title=f"{c.chip}, busy {c.busy:.0%} of the time",
        )  # fmt: skip
        ax.lines[0].set_marker("")
        ax.fill_between(years, own["low"], own["high"], color=COLORS[0], alpha=0.15, linewidth=0)
        ax.set(xlim=(0, c.years), ylim=(0, 1.05 * top))
        save_figure(figure, file)
