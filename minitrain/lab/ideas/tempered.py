"""Weights of three sources by the temperature, and how often each is then read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZES = {"good": 2.0, "books": 30.0, "crawl": 1000.0}  # billions of tokens
BUDGET = 500.0
MOST = 4.0
TEMPERATURES = {"1": 1.0, "2": 2.0, "5": 5.0, "inf": float("inf")}


def shares(temperature: str) -> list[float]:
    values = [size ** (1 / TEMPERATURES[temperature]) for size in SIZES.values()]
    return [value / sum(values) for value in values]


def passes(temperature: str) -> list[float]:
    return [BUDGET * p / size for p, size in zip(shares(temperature), SIZES.values())]


def draw_tempered(ax: Axes, temperature: str) -> None:
    bare(ax, 12.2, 4.4)
    for x, words in ((1.9, "share of the tokens read"), (8.6, "passes over the source")):
        say(ax, x, 0.35, words, 9.5, ha="left", fontweight="bold")
    rows = zip(SIZES, shares(temperature), passes(temperature), (ORANGE, GREEN, BLUE))
    for row, (name, share, times, color) in enumerate(rows):
        y = 0.8 + 1.05 * row
        say(ax, 1.7, y + 0.35, f"{name}\n{SIZES[name]:g} billion", 8.5, ha="right")
        box(ax, 1.9, y, max(0.04, 5.0 * share), 0.7, color)
        say(ax, 2.0 + 5.0 * share, y + 0.35, f"{share:.1%}", 9, ha="left")
        many = times > MOST
        box(ax, 8.6, y, min(max(0.04, 0.4 * times), 2.4), 0.7, lighter(color, 0 if many else 0.6))
        say(ax, 8.7 + min(0.4 * times, 2.4), y + 0.35, f"{times:.2g}", 9, ha="left")
    ax.plot([8.6 + 0.4 * MOST] * 2, [0.7, 3.8], ":", color="#444444")
    say(ax, 8.6 + 0.4 * MOST, 4.1, f"{MOST:g} passes", 8.5)
    say(ax, 1.9, 4.1, f"a run of {BUDGET:g} billion tokens, T = {temperature}", 8.5, ha="left")


def say_tempered(temperature: str) -> str:
    told = zip(SIZES, shares(temperature), passes(temperature))
    words = "; ".join(f"{n} {p:.1%} and {times:.2g} passes" for n, p, times in told)
    over = sum(times > MOST for times in passes(temperature))
    return (
        f"Temperature {temperature}: {over} of 3 sources are read more than {MOST:g} times. Of a "
        f"run of {BUDGET:g} billion tokens: {words}."
    )


tempered_shares = Schematic(
    draw_tempered, say_tempered, (9.5, 3.4), {"temperature": (list(TEMPERATURES), "2")}
)
