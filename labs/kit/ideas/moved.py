"""SmoothQuant: how much of an outlier moves from the activations into the weights.

s = max|x|^alpha / max|w|^(1 - alpha): activations are divided by it, columns of the weight are
multiplied (Xiao et al. 2023, equation 4). Six channels, of which one is an outlier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACTIVATIONS = (1.0, 1.5, 60.0, 0.8, 2.0, 1.2)  # max|x| of each channel
WEIGHTS = (0.6, 0.4, 0.5, 0.7, 0.3, 0.5)  # max|w| of each column
TOP = 60.0
HIGH = 2.4


def after(alpha: float) -> tuple[list[float], list[float]]:
    """max|x| and max|w| of each channel when the scale has moved."""
    scales = [x**alpha / w ** (1 - alpha) for x, w in zip(ACTIVATIONS, WEIGHTS)]
    return (
        [x / s for x, s in zip(ACTIVATIONS, scales)],
        [w * s for w, s in zip(WEIGHTS, scales)],
    )


def spread(values: list[float]) -> float:
    """The largest over the smallest."""
    return max(values) / min(values)


def height(value: float) -> float:
    """Of a bar: in steps of equal ratios, from 0.01 up."""
    from math import log10

    return max(0.04, HIGH * (log10(value) + 2) / (log10(TOP) + 2))


def draw_moved_scale(ax: Axes, alpha: float) -> None:
    bare(ax, 13.0, 4.2)
    activations, weights = after(alpha)
    panels = (
        ("activations, before", list(ACTIVATIONS), BLUE, 0.3),
        ("weights, before", list(WEIGHTS), BLUE, 3.4),
        (f"activations / s, alpha {alpha:g}", activations, ORANGE, 7.0),
        ("weights · s", weights, ORANGE, 10.1),
    )
    for title, values, color, x in panels:
        say(ax, x, 0.3, title, 9, ha="left", fontweight="bold")
        for place, value in enumerate(values):
            tall = height(value)
            shade = color if place == 2 else lighter(color, 0.5)
            box(ax, x + 0.42 * place, 0.9 + HIGH - tall, 0.36, tall, shade)
        words = f"largest / smallest: {spread(values):.3g}"
        say(ax, x, 3.6, words, 9, ha="left")
    words = "bars: largest magnitude of a channel, logarithmic    dark: the outlier"
    say(ax, 0.3, 4.0, words, 9, ha="left")
    say(ax, 7.0, 4.0, "s: one factor for each channel, (x / s) · (w · s) = x · w", 9, ha="left")


def say_moved_scale(alpha: float) -> str:
    activations, weights = after(alpha)
    return (
        f"alpha {alpha:g}: activations spread {spread(activations):.3g} fold, weights "
        f"{spread(weights):.3g} fold. Before, activations spread {spread(list(ACTIVATIONS)):.3g} "
        f"fold, since one channel is an outlier, and weights {spread(list(WEIGHTS)):.3g} fold. The "
        "product of the two is the same in every channel."
    )


moved_scale = Schematic(
    draw_moved_scale, say_moved_scale, (9.5, 3.1), {"alpha": ([0.0, 0.25, 0.5, 0.75, 1.0], 0.5)}
)
