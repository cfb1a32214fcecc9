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
LEFT, SCALE, WIDEST = 8.6, 0.3, 3.0  # of the bars on the right, a pass and the longest
TEMPERATURES = {"1": 1.0, "2": 2.0, "5": 5.0, "inf": float("inf")}


def shares(temperature: str) -> list[float]:
    values = [size ** (1 / TEMPERATURES[temperature]) for size in SIZES.values()]
    return [value / sum(values) for value in values]


def passes(temperature: str) -> list[float]:
    return [BUDGET * p / size for p, size in zip(shares(temperature), SIZES.values())]


def draw_tempered(ax: Axes, temperature: str) -> None:
    bare(ax, 12.2, 4.9)
    for x, words in ((1.9, "share of the tokens read"), (LEFT, "passes over the source")):
        say(ax, x, 0.35, words, 9.5, ha="left", fontweight="bold")
    rows = zip(SIZES, shares(temperature), passes(temperature), (ORANGE, GREEN, BLUE))
    for row, (name, share, times, color) in enumerate(rows):
        y = 0.8 + 1.05 * row
        say(ax, 1.7, y + 0.35, f"{name}\n{SIZES[name]:g} billion", 8.5, ha="right")
        box(ax, 1.9, y, max(0.04, 5.0 * share), 0.7, color)
        say(ax, 2.0 + 5.0 * share, y + 0.35, f"{share:.1%}", 9, ha="left")
        many = times > MOST
        wide = min(max(0.04, SCALE * times), WIDEST)
        box(ax, LEFT, y, wide, 0.7, lighter(color, 0 if many else 0.6))
        for x in (
            (WIDEST - 0.4, WIDEST - 0.28) if SCALE * times > WIDEST else ()
        ):  # the bar is cut short
            ax.plot([LEFT + x, LEFT + x + 0.12], [y + 0.76, y - 0.06], color="white", linewidth=3)
        say(ax, LEFT + 0.1 + wide, y + 0.35, f"{times:.2g}", 9, ha="left")
    ax.plot([LEFT + SCALE * MOST] * 2, [0.7, 3.8], ":", color="#444444")
    say(ax, LEFT + SCALE * MOST, 4.1, f"{MOST:g} passes", 9)
    words = f"pale: up to {MOST:g}"
    if SCALE * max(passes(temperature)) > WIDEST:
        words += "    two gaps: cut short"
    say(ax, LEFT, 4.55, words, 9, ha="left")
    words = f"a run of {BUDGET:g} billion tokens, T = {temperature}"
    say(ax, 1.9, 4.1, words, 9, ha="left")
    say(ax, 1.9, 4.55, "shares in proportion to size$^{1/T}$", 9, ha="left")


def say_tempered(temperature: str) -> str:
    told = zip(SIZES, shares(temperature), passes(temperature))
    words = "; ".join(f"{n} {p:.1%} and {times:.2g} passes" for n, p, times in told)
    over = sum(times > MOST for times in passes(temperature))
    verb = "is" if over == 1 else "are"
    return (
        f"Temperature {temperature}: {over} of 3 sources {verb} read more than {MOST:g} times. Of "
        f"a run of {BUDGET:g} billion tokens: {words}. "
        f"Shares grow as size^(1/T). Bars of more than {WIDEST / SCALE:.0f} passes are cut short."
    )


tempered_shares = Schematic(
    draw_tempered, say_tempered, (9.5, 3.6), {"temperature": (list(TEMPERATURES), "2")}
)
