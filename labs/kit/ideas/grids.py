"""The levels of an integer grid: symmetric around zero, or moved by a zero point.

The weights are fixed, between -0.5 and 1; what changes is how few levels they must share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.shapes import bare, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WEIGHTS = (-0.5, -0.37, -0.22, -0.08, 0.05, 0.11, 0.24, 0.33, 0.46, 0.58, 0.71, 1.0)
LEFT, WIDE = 2.2, 8.0


def symmetric(bits: int) -> list[float]:
    """The levels of absmax."""
    largest = 2 ** (bits - 1) - 1
    step = max(map(abs, WEIGHTS)) / largest
    return [step * code for code in range(-largest, largest + 1)]


def moved(bits: int) -> list[float]:
    """The levels with a zero point."""
    steps = 2**bits - 1
    step = (max(WEIGHTS) - min(WEIGHTS)) / steps
    zero = round(-min(WEIGHTS) / step)
    return [step * (code - zero) for code in range(steps + 1)]


def error(levels: list[float]) -> float:
    """The root of the mean square, in the weights' own units."""
    squares = [min((w - level) ** 2 for level in levels) for w in WEIGHTS]
    return (sum(squares) / len(squares)) ** 0.5


def place(value: float) -> float:
    return LEFT + WIDE * (value + 1.1) / 2.2


def draw_integer_grids(ax: Axes, bits: int) -> None:
    bare(ax, 12.4, 3.4)
    rows = {
        "absmax: as far\non both sides": (symmetric(bits), BLUE),
        "with a zero point": (moved(bits), GREEN),
    }
    for row, (name, (levels, color)) in enumerate(rows.items()):
        y = 0.8 + 1.45 * row
        say(ax, LEFT - 0.25, y, name, 9, ha="right", fontweight="bold")
        ax.plot([place(-1.1), place(1.1)], [y, y], color="#bbbbbb", linewidth=1, zorder=0)
        for level in levels:
            ax.plot([place(level)] * 2, [y - 0.2, y + 0.2], color=color, linewidth=2)
        for w in WEIGHTS:
            level = min(levels, key=lambda level, w=w: abs(level - w))
            ax.plot([place(w)], [y - 0.48], "o", color=ORANGE, markersize=4)
            ax.plot([place(w), place(level)], [y - 0.42, y - 0.2], color="#999999", linewidth=0.8)
        words = f"0 has to be a level: code {levels.index(0)}, the zero point" if row else "0"
        say(ax, place(0), y + 0.42, words, 8.5)
        for end in (min(WEIGHTS), max(WEIGHTS)) if not row else ():
            say(ax, place(end), y + 0.42, f"{end:g}", 8.5)
        used = len({min(levels, key=lambda level, w=w: abs(level - w)) for w in WEIGHTS})
        words = f"{len(levels)} levels, {used} used\nerror (rms) {error(levels):.3f}"
        say(ax, LEFT + WIDE + 0.1, y, words, 9, ha="left")
    say(ax, LEFT, 3.15, "orange: twelve weights    bars: the levels they may take", 9, ha="left")


def say_integer_grids(bits: int) -> str:
    one, other = symmetric(bits), moved(bits)
    return (
        f"Twelve weights in {bits} bits: {len(one)} levels, or {len(other)} with a zero point. "
        f"Absmax leaves levels unused where no weight lies; its error is {error(one):.3f}. A zero "
        f"point moves the levels to the weights: error {error(other):.3f}. Both have 0 itself."
    )


integer_grids = Schematic(
    draw_integer_grids, say_integer_grids, (9.5, 2.8), {"bits": ([2, 3, 4, 5], 3)}
)
