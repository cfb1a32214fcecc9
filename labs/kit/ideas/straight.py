"""The straight-through estimator: a staircase whose gradient is taken to be that of a ramp.

Forward is round and clamp; backward is 1 where no code was clamped, and 0 outside (Bengio et al.
2013). The step is 1: the horizontal axis counts in steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.shapes import bare, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REACH = 5.0  # to both sides, in steps
MIDDLES, HIGH, UNIT = (3.1, 9.6), 2.4, 0.5


def largest(bits: int) -> int:
    return 2 ** (bits - 1) - 1


def rounded(x: float, bits: int) -> int:
    """The code of x, clamped."""
    m = largest(bits)
    return max(-m, min(m, round(x)))


def gradient(x: float, bits: int) -> int:
    """1 where no code was clamped."""
    return int(abs(round(x)) <= largest(bits))


def draw_straight_through(ax: Axes, bits: int) -> None:
    bare(ax, 12.8, 5.2)
    xs = [REACH * (k / 2000 - 1) for k in range(4001)]
    titles = "forward: Q(w) / s", "backward: share of the gradient that passes"
    for middle, title in zip(MIDDLES, titles):
        say(ax, middle, 0.3, title, 9, fontweight="bold")
        ends = [middle - UNIT * REACH, middle + UNIT * REACH]
        ax.plot(ends, [HIGH, HIGH], color="#bbbbbb", linewidth=1, zorder=0)
        for step in range(-int(REACH), int(REACH) + 1):
            say(ax, middle + UNIT * step, 4.55, f"{step}", 8.5)
        say(ax, middle, 4.95, "w / s", 9)
    ramp = [MIDDLES[0] + UNIT * x for x in (-REACH, REACH)]
    ends = [HIGH - 0.38 * x for x in (-REACH, REACH)]
    ax.plot(ramp, ends, color="#999999", linestyle="--", linewidth=1)
    m = largest(bits)
    for value in (-m, 0, m):
        say(ax, MIDDLES[0] - UNIT * REACH - 0.15, HIGH - 0.38 * value, f"{value}", 8.5, ha="right")
    steps = [HIGH - 0.38 * rounded(x, bits) for x in xs]
    ax.plot([MIDDLES[0] + UNIT * x for x in xs], steps, color=BLUE, linewidth=2)
    passed = [HIGH - 1.4 * gradient(x, bits) for x in xs]
    ax.plot([MIDDLES[1] + UNIT * x for x in xs], passed, color=ORANGE, linewidth=2)
    for value in (0, 1):
        say(ax, MIDDLES[1] - UNIT * REACH - 0.2, HIGH - 1.4 * value, f"{value}", 8.5, ha="right")
    say(
        ax, MIDDLES[1], 3.2, f"1 between -{m + 0.5:g} and {m + 0.5:g}, where no code was clamped", 9
    )
    say(ax, MIDDLES[1], 3.7, "the staircase's own derivative is 0", 9)


def say_straight_through(bits: int) -> str:
    m = largest(bits)
    return (
        f"{bits} bits: a staircase from -{m} to {m}, and a gradient of 1 where it follows w. "
        f"Forward, w is rounded to whole steps and clamped at {m}. Backward, the gradient passes "
        "as if nothing had been rounded, and is 0 where the code was clamped."
    )


straight_through = Schematic(
    draw_straight_through, say_straight_through, (9.5, 3.8), {"bits": ([2, 3], 3)}
)
