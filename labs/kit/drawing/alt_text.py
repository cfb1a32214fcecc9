"""Alt text of a figure, derived from its axes if its author wrote none.

    "Loss. loss (nats) against tokens seen: ours: from 5.9 at 700 to 0.86 at 120,000; …"

So a screen reader reads the measured numbers, not the expected ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from minitrain.lab.drawing.tables import column_texts
from minitrain.words import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FEW = 7  # up to this many points of a line are listed individually


def alt_text(figure: Figure) -> str:
    """Each panel's label if set, else its title, axis labels, and its named lines and bars in
    numbers."""
    return " ".join(axes.get_label() or _panel(axes) for axes in figure.axes)


def _panel(axes: Axes) -> str:
    title = axes.get_title(loc="left") or axes.get_title()
    x, y = axes.get_xlabel(), axes.get_ylabel()
    against = f"{y} against {x}" if x and y else x or y
    head = ". ".join(part for part in (title, against) if part)
    shown = "; ".join(chain(_lines(axes), _bars(axes)))
    return _one_line(": ".join(part for part in (head, shown) if part) + ".")


def _lines(axes: Axes) -> Iterator[str]:
    for line in axes.get_lines():
        xs, ys = map(float, line.get_xdata()), map(float, line.get_ydata())
        if not line.get_label().startswith("_"):
            yield f"{line.get_label()}: {_course(list(xs), list(ys))}"


def _course(xs: Sequence[float], ys: Sequence[float]) -> str:
    """A line in numbers: its ends, and any extremes beyond them."""
    if len(set(ys)) == 1:
        return f"level at {number_text(ys[0])}"
    points = [f"{y} at {number_text(x)}" for x, y in zip(xs, column_texts(ys))]
    if len(points) <= FEW:
        return ", ".join(points)
    beyond = [
        f", {word} {points[ys.index(most)]}"
        for word, most in (("highest", max(ys)), ("lowest", min(ys)))
        if most not in (ys[0], ys[-1])
    ]
    return f"from {points[0]} to {points[-1]}{''.join(beyond)}"


def _bars(axes: Axes) -> Iterator[str]:
    """Heights of vertical bars by their names, and of short lines across them."""
    from matplotlib.container import BarContainer

    names = [label.get_text() for label in axes.get_xticklabels()]
    for bars in (each for each in axes.containers if isinstance(each, BarContainer)):
        label = "" if bars.get_label().startswith("_") else f"{bars.get_label()}: "
        heights = column_texts([float(bar.get_height()) for bar in bars])
        if len(heights) == len(names):
            yield label + ", ".join(map(" ".join, zip(names, heights)))
    for drawn in axes.collections:
        if hasattr(drawn, "get_segments") and not drawn.get_label().startswith("_"):
            levels = column_texts([float(segment[0, 1]) for segment in drawn.get_segments()])
            yield f"{drawn.get_label()}: {', '.join(levels)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())
