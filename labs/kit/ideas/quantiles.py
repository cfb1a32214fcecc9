"""Where a datatype's levels lie, over the weights of a block, and how many weights each one gets.

Weights are taken as normal; a block of 64 is divided by its largest magnitude, which is 2.6
standard deviations in the mean. A level gets what lies nearer to it than to its neighbours.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LARGEST = 2.6  # standard deviations, of 64 normal numbers in the mean
FP4 = (0, 0.0625, 2, 3, 4, 6, 8, 12)  # over the largest, and their negatives
LEVELS = {
    "INT4": tuple(step / 7 for step in range(-7, 8)),
    "FP4": tuple(sorted({sign * size / 12 for sign in (-1, 1) for size in FP4})),
    "NF4": (
        -1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
        0.0796, 0.1609, 0.2461, 0.3379, 0.4407, 0.5626, 0.7230, 1.0,
    ),
}  # fmt: skip
LEFT, WIDE, GROUND = 0.5, 10.0, 2.5  # of the curve; below it are the shares
HIGH = 1.9


def below(x: float) -> float:
    """The share of weights under x, a fraction of the largest magnitude."""
    return 0.5 * (1 + math.erf(x * LARGEST / math.sqrt(2)))


def shares(datatype: str) -> list[float]:
    """Of all weights, what each level gets."""
    levels = LEVELS[datatype]
    middles = [(low + high) / 2 for low, high in pairwise(levels)]
    edges = [0.0, *map(below, middles), 1.0]
    return [high - low for low, high in pairwise(edges)]


def place(x: float) -> float:
    return LEFT + WIDE * (x + 1) / 2


def draw_quantiles(ax: Axes, datatype: str) -> None:
    bare(ax, LEFT + WIDE + 0.5, GROUND + 2.95)
    xs = [step / 100 - 1 for step in range(201)]
    heights = [GROUND - HIGH * math.exp(-((x * LARGEST) ** 2) / 2) for x in xs]
    ax.fill_between([place(x) for x in xs], heights, GROUND, color=lighter(BLUE, 0.7), linewidth=0)
    words = "how the weights of a block lie, divided by their largest magnitude"
    say(ax, LEFT, 0.45, words, 9, ha="left")
    for level, share in zip(LEVELS[datatype], shares(datatype)):
        x = place(level)
        ax.plot([x, x], [GROUND - 0.1, GROUND + 0.2], color=ORANGE, linewidth=2)
        box(ax, x - 0.11, GROUND + 0.65, 0.22, 9 * share, BLUE)
    for value in (-1, -0.5, 0, 0.5, 1):
        say(ax, place(value), GROUND + 0.42, f"{value:g}", 8.5)
    equal = GROUND + 0.65 + 9 / len(LEVELS[datatype])
    ax.plot([LEFT - 0.2, LEFT + WIDE + 0.2], [equal, equal], ":", color="#444444")
    legend = "orange: a level    blue bar: the share of all weights that is rounded to it    "
    say(ax, LEFT, GROUND + 2.75, legend + "dotted: equal shares", 9, ha="left")


def say_quantiles(datatype: str) -> str:
    got, levels = shares(datatype), LEVELS[datatype]
    outer = sum(share for share, level in zip(got, levels) if abs(level) > 0.6)
    return (
        f"{datatype}: {len(levels)} levels, and the fullest gets {max(got):.0%} of the weights. "
        f"The weights of a block are normal, their largest is 1. Levels beyond 0.6 get {outer:.0%} "
        "together. A bar below each level is as long as its share; "
        "dotted is how long all would be if they were equal."
    )


quantile_levels = Schematic(
    draw_quantiles, say_quantiles, (9.5, 4.4), {"datatype": (list(LEVELS), "INT4")}
)
