"""LLM.int8(): the columns of outliers leave both matrices, and are multiplied apart.

Dettmers et al. 2022, section 3.2: T tokens times D channels, of which a few reach 6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import INK, lighter
from minitrain.lab.drawing.shapes import arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TOKENS, CHANNELS, FEATURES = 4, 10, 3
ORDER = (3, 7, 0)  # the channels that become outliers, one after the other
SIDE = 0.34


def outliers(count: int) -> list[int]:
    """The first `count` of them, from left to right."""
    return sorted(ORDER[:count])


def matrix(ax: Axes, x: float, y: float, rows: int, columns: list[int], dark: list[int]) -> None:
    """A grid of cells, those of `dark` in orange."""
    for row in range(rows):
        for place, column in enumerate(columns):
            color = ORANGE if column in dark else lighter(BLUE, 0.5)
            box(ax, x + SIDE * place, y + SIDE * row, SIDE - 0.04, SIDE - 0.04, color)


def draw_outlier_columns(ax: Axes, count: int) -> None:
    bare(ax, 13.2, 4.4)
    dark, every = outliers(count), list(range(CHANNELS))
    rest = [column for column in every if column not in dark]
    say(ax, 0.3, 0.5, "x: tokens x channels", 9, ha="left", fontweight="bold")
    matrix(ax, 0.3, 0.75, TOKENS, every, dark)
    say(ax, 0.3, 2.6, "W: outputs x channels", 9, ha="left", fontweight="bold")
    matrix(ax, 0.3, 2.85, FEATURES, every, dark)
    ax.plot((3.85, 3.95, 3.95, 3.85), (0.75, 0.75, 3.83, 3.83), color=INK, linewidth=1.2)
    arrow(ax, (3.95, 2.0), (4.8, 1.4))
    say(ax, 5.0, 0.5, "int8, sums in int32", 9, ha="left", fontweight="bold")
    matrix(ax, 5.0, 0.75, TOKENS, rest, [])
    say(ax, 5.1 + SIDE * len(rest), 1.4, "×", 11)
    matrix(ax, 5.3 + SIDE * len(rest), 0.9, FEATURES, rest, [])
    say(ax, 5.4 + 2 * SIDE * len(rest), 0.85, "T", 9)
    if dark:
        arrow(ax, (3.95, 2.6), (4.8, 3.3))
        say(ax, 5.0, 2.6, "floating point", 9, ha="left", fontweight="bold")
        matrix(ax, 5.0, 2.85, TOKENS, dark, dark)
        say(ax, 5.1 + SIDE * len(dark), 3.5, "×", 11)
        matrix(ax, 5.3 + SIDE * len(dark), 3.0, FEATURES, dark, dark)
        say(ax, 5.4 + 2 * SIDE * len(dark), 2.95, "T", 9)
        ax.plot((11.85, 11.95, 11.95, 11.85), (0.75, 0.75, 4.15, 4.15), color=INK, linewidth=1.2)
        say(ax, 12.15, 2.45, "+", 11)
        arrow(ax, (12.3, 2.45), (12.8, 2.45))
        say(ax, 12.95, 2.45, "y", 9, fontweight="bold")


def say_outlier_columns(count: int) -> str:
    return (
        f"{count} of {CHANNELS} channels hold outliers: {CHANNELS - count} are multiplied in int8. "
        "The channels in which any token reaches 6 are taken out of x and of W, and multiplied in "
        "floating point; both results are added. No outlier is left to set a scale."
    )


outlier_columns = Schematic(
    draw_outlier_columns, say_outlier_columns, (9.5, 3.2), {"count": (0, len(ORDER), 2)}
)
