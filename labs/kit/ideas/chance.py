"""Rounding to the nearest, and rounding by chance: where a number between two neighbours goes.

By chance it goes up as often as it lies nearer to the upper neighbour, so that the mean of many
roundings is the number itself (Gupta et al. 2015).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EIGHTHS, DRAWS = 8, 16
LEFT, WIDE = 0.9, 4.6


def goes_up(eighths: int) -> float:
    """How often rounding by chance goes up, for a number so many eighths of the way."""
    return eighths / EIGHTHS


def draw_rounding(ax: Axes, eighths: int) -> None:
    bare(ax, 12.6, 3.0)
    share = goes_up(eighths)
    for place, words in ((0, "below"), (1, "above")):
        x = LEFT + WIDE * place
        ax.plot([x, x], [0.9, 1.7], color="#444444", linewidth=2)
        say(ax, x, 2.05, f"neighbour\n{words}")
    say(ax, LEFT + WIDE / 2, 2.65, "neighbours: two numbers that the format has")
    ax.plot([LEFT, LEFT + WIDE], [1.3, 1.3], color="#999999", linewidth=1)
    ax.plot([LEFT + WIDE * share], [1.3], "o", color=ORANGE, markersize=10)
    say(ax, LEFT + WIDE * share, 0.7, "x", 11, fontweight="bold")
    rows = {
        "to the nearest": [share > 0.5] * DRAWS,
        f"by chance, up with p = {eighths}/{EIGHTHS}": [
            (7 * n % DRAWS) < share * DRAWS for n in range(DRAWS)
        ],
    }
    for row, (how, ups) in enumerate(rows.items()):
        y = 0.75 + 1.1 * row
        mean = sum(ups) / DRAWS
        say(ax, 6.9, y - 0.3, f"{how}: mean {mean:g} of the way", 9, ha="left", fontweight="bold")
        for n, up in enumerate(ups):
            box(ax, 6.9 + 0.34 * n, y - 0.05, 0.3, 0.4, (GREEN if row else BLUE) if up else PALE,
                edgecolor="#999999")  # fmt: skip
    say(ax, 6.9, 2.65, "16 roundings of x: filled goes up, pale goes down", ha="left")


def say_rounding(eighths: int) -> str:
    near = "up" if goes_up(eighths) > 0.5 else "down"
    return (
        f"Rounding x, which is {eighths}/{EIGHTHS} of the way up. To the nearest, all 16 "
        f"roundings go {near}; by chance {round(DRAWS * goes_up(eighths))} of 16 go up, so that "
        "their mean is x itself."
    )


rounding = Schematic(draw_rounding, say_rounding, (9.5, 2.5), {"eighths": (1, EIGHTHS - 1, 2)})
