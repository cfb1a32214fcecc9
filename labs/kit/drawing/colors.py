"""The course's colours, and readable combinations by WCAG 2.2 contrast."""

from __future__ import annotations

from collections.abc import Sequence

Color = str | Sequence[float]

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
COLORS = [BLUE, ORANGE, GREEN, PINK, "#56B4E9", "#7A5C00", "#444444"]  # of series, or of ranks
INK = "#222222"  # of words and arrows
PALE = "#f1f1f1"  # of boxes in the background
READABLE = 4.5  # of text against its background (WCAG 2.2, 1.4.3)


def lighter(color: Color, share: float) -> tuple[float, ...]:
    """The colour mixed with white: 0 is itself, 1 white."""
    from matplotlib.colors import to_rgb

    return tuple(c + (1 - c) * share for c in to_rgb(color))


def ink_on(color: Color) -> str:
    """White or black, whichever is readable on `color`: one always is."""
    return "white" if contrast("white", color) >= READABLE else "black"


def as_text(color: Color) -> Color:
    """The colour, darkened until text in it is readable on white."""
    from matplotlib.colors import to_rgb

    while contrast("white", color) < READABLE:
        color = [0.97 * part for part in to_rgb(color)]
    return color


def contrast(one: Color, other: Color) -> float:
    """The contrast of two colours, 1 (the same) to 21 (black on white), as WCAG 2.2 defines it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color: Color) -> float:
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(color)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
