"""A row of W as a vector: LoRA moves its end, DoRA turns it and learns its length apart.

y = m V / ‖V‖ with V = W + ΔW (Liu et al. 2024): the direction is V's, the length is m.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import arrow, bare, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROW = (3.0, 1.2)
DELTA = (-0.6, 1.6)


def length(vector: tuple[float, float]) -> float:
    return math.hypot(*vector)


def turned(share: float) -> tuple[float, float]:
    """V: the row with so much of its length more, in the direction of W + ΔW."""
    v = ROW[0] + DELTA[0], ROW[1] + DELTA[1]
    wanted = share * length(ROW) / length(v)
    return v[0] * wanted, v[1] * wanted


def compared(magnitude: float) -> str:
    """The learned length beside the row's own, with which it begins."""
    return (
        "the row's own, as at the start" if magnitude == 1 else f"{magnitude:g} times the row's own"
    )


def draw_lengths(ax: Axes, magnitude: float) -> None:
    bare(ax, 12.4, 4.6)
    for left, title in ((0.8, "LoRA: one sum"), (6.8, "DoRA: direction, then length")):
        say(ax, left, 0.3, title, 10, ha="left", fontweight="bold")
        start = left, 4.3
        row = left + ROW[0], 4.3 - ROW[1]
        arrow(ax, start, row, BLUE)
        say(ax, row[0] + 0.2, row[1] + 0.1, "row of W", 9, ha="left")
    start, end = (0.8, 4.3), (0.8 + ROW[0] + DELTA[0], 4.3 - ROW[1] - DELTA[1])
    arrow(ax, (0.8 + ROW[0], 4.3 - ROW[1]), end, ORANGE)
    say(ax, 0.8 + ROW[0] + DELTA[0] / 2 + 0.2, 4.3 - ROW[1] - DELTA[1] / 2, "ΔW", 9, ha="left")
    arrow(ax, start, end, GREEN)
    say(ax, end[0] + 0.2, end[1] - 0.2, "V = W + ΔW", 9, ha="left")
    new, whole = (
        (6.8 + v[0], 4.3 - v[1]) for v in (turned(magnitude), (end[0] - 0.8, 4.3 - end[1]))
    )
    ax.plot((6.8, whole[0]), (4.3, whole[1]), "--", color=GREEN, linewidth=1.2)
    say(ax, whole[0] + 0.5, whole[1] - 0.2, "V: the direction", 9, ha="left")
    arrow(ax, (6.8, 4.3), new, GREEN)
    say(ax, (6.8 + new[0]) / 2 - 0.22, (4.3 + new[1]) / 2 - 0.16, "m", 10)
    say(ax, 6.8, 0.8, f"m, a learned length: {compared(magnitude)}", 9, ha="left")


def say_lengths(magnitude: float) -> str:
    return (
        "LoRA adds ΔW to a row; DoRA takes the direction of the sum, and learns the length m. "
        "Adding ΔW changes direction and length at once; DoRA learns the length apart from the "
        f"direction. The learned length is {compared(magnitude)}."
    )


lengths = Schematic(
    draw_lengths, say_lengths, (9.5, 3.2), {"magnitude": ([0.6, 0.8, 1.0, 1.2], 1.0)}
)
