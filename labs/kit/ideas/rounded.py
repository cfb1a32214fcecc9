"""The merge trap: what training added to a weight, against the distance of two levels.

A weight of the quantized base lies exactly on a level. The adapter moves it by a part of the way
to the next; rounded to the nearest level, it comes back, or goes too far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import arrow, bare, box, say
from minitrain.lab.ideas.quantiles import LEVELS
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHOWN = LEVELS["NF4"][6:12]  # six neighbours
AT = 2  # the weight's level among them
LEFT, WIDE = 0.9, 9.2


def merged(percent: int) -> float:
    """Where base and adapter lie together: so many hundredths of the way to the next level."""
    return SHOWN[AT] + percent / 100 * (SHOWN[AT + 1] - SHOWN[AT])


def rounded(percent: int) -> float:
    return min(SHOWN, key=lambda level: abs(level - merged(percent)))


def place(x: float) -> float:
    return LEFT + WIDE * (x - SHOWN[0]) / (SHOWN[-1] - SHOWN[0])


def draw_rounded_away(ax: Axes, adapter: int) -> None:
    bare(ax, LEFT + WIDE + 1.0, 3.9)
    for row, title in enumerate(("base and adapter, 16 bits", "rounded to 4 bits anew")):
        y = 1.15 + 1.5 * row
        ax.plot([LEFT - 0.3, LEFT + WIDE + 0.3], [y, y], color="#777777", linewidth=1, zorder=0)
        for level in SHOWN:
            ax.plot([place(level)] * 2, [y - 0.15, y + 0.15], color=BLUE, linewidth=2, zorder=0)
            if row:  # the same above, where an arrow passes
                say(ax, place(level), y + 0.35, f"{level:.3f}", 9)
        say(ax, LEFT - 0.3, y - 0.75, title, 9, ha="left", fontweight="bold")
    x, end = place(SHOWN[AT]), place(merged(adapter))
    box(ax, x - 0.07, 1.08, 0.14, 0.14, BLUE)
    arrow(ax, (x, 0.95), (end + 0.001, 0.95), ORANGE)
    box(ax, end - 0.07, 1.08, 0.14, 0.14, ORANGE)
    box(ax, place(rounded(adapter)) - 0.07, 2.58, 0.14, 0.14, GREEN)
    arrow(ax, (end, 1.25), (place(rounded(adapter)), 2.5), GREEN)
    legend = "blue: levels, and a weight of the base    orange: with its adapter    green: rounded"
    say(ax, LEFT - 0.3, 3.65, legend, 9, ha="left")


def say_rounded_away(adapter: int) -> str:
    error = (rounded(adapter) - merged(adapter)) / (SHOWN[AT + 1] - SHOWN[AT])
    fate = "is gone" if rounded(adapter) == SHOWN[AT] else "is a whole step"
    return (
        f"An adapter that moves a weight {adapter}% of the way to the next level {fate} "
        f"after rounding. The base lies on {SHOWN[AT]:.3f}, with the adapter it is "
        f"{merged(adapter):.3f}, and rounded anew {rounded(adapter):.3f}: wrong "
        f"by {abs(error):.0%} of the distance of two levels."
    )


rounded_away = Schematic(
    draw_rounded_away, say_rounded_away, (9.5, 3.4), {"adapter": ([10, 30, 45, 60, 90], 30)}
)
