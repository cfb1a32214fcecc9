"""The house style of figures: 3:2, direct labels, units on every axis, white face, alt text.

    show.lines({"ring": (sizes, seconds)}, x="message (bytes)", y="time (s)", log="xy")

Every function displays at once and returns None; given `ax=`, it draws there and displays nothing.
A figure is a PNG inside an <img>, on white, so that it is readable in a dark theme. Its alt text is
the author's, or derived from its axes by `alt_text.py`.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING, Any

from minitrain.errors import InputError
from minitrain.lab.drawing.alt_text import alt_text
from minitrain.lab.drawing.colors import COLORS, INK, as_text
from minitrain.lab.drawing.display import MUTED, Rich, display, words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
DASHES = ["--", ":", "-."]  # of theories without a matching series
STYLE = {
    "figure.facecolor": "white",
    "axes.facecolor": "white",
    "savefig.facecolor": "white",
    "font.family": ["DejaVu Sans"],
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#888888",
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "svg.fonttype": "none",
}
Line = tuple[Sequence[float], Sequence[float]]
End = tuple[str, str, float, float]  # a line's name, colour, last x and y
LONGEST_NAME = 28  # characters at a line's end
MOST_TICKS = 8  # side by side
STEP = 1.35 * 9  # points between two such names


@contextmanager
def canvas(
    columns: int = 1, rows: int = 1, width: float | None = None, height: float | None = None
) -> Iterator[tuple[Figure, Any]]:
    """A figure in the house style; `axes` is one Axes or an array. Draw inside the block."""
    import matplotlib
    from matplotlib.figure import Figure

    width = width or (6.6 if columns == 1 else 4.8 * columns)
    height = height or width * 2 / 3 / columns * rows
    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=(width, height), layout="constrained", dpi=150)
        yield fig, fig.subplots(rows, columns)


def figure(fig: Figure, alt: str = "", caption: str = "") -> None:
    """Displays a matplotlib figure with its alt text, and a caption below it."""
    display(picture(fig, alt, caption))


def picture(fig: Figure, alt: str = "", caption: str = "") -> Rich:
    """The figure as an object that can be displayed."""
    alt = alt or alt_text(fig)
    if len(alt.split()) < 4:
        raise InputError(
            f"alt text '{alt}' says too little: what is plotted against what, and what is seen? "
            "A title and axis labels with units say it, too"
        )
    _darken_words(fig)
    buffer = io.BytesIO()
    fig.savefig(buffer, format="png", dpi=150, facecolor="white")
    data = base64.b64encode(buffer.getvalue()).decode()
    below = f'<figcaption style="{MUTED}font-size:13px;">{words(caption)}</figcaption>'
    html = (
        '<figure style="margin:8px 0;">'
        f'<img alt="{escape(alt)}" width="{round(fig.get_figwidth() * 100)}" '
        'style="max-width:100%;background-color:#ffffff;border-radius:4px;padding:4px;" '
        f'src="data:image/png;base64,{data}">{below if caption else ""}</figure>'
    )
    return Rich(html, f"[figure: {alt}]" + (f"\n{caption}" if caption else ""))


@contextmanager
def drawing(
    ax: Axes | None, alt: str, caption: str, width: float | None = None, height: float | None = None
) -> Iterator[Axes]:
    """The given axes, which keep the alt text, or new ones, displayed at the end."""
    if ax is not None:
        ax.set_label(alt)
        yield ax
        return
    with canvas(width=width, height=height) as (fig, own):
        yield own
        figure(fig, alt, caption)


def _darken_words(fig: Figure) -> None:
    """Darkens text in series colours, most of which are too light to read on white."""
    from matplotlib.text import Text

    for text in fig.findobj(Text):
        if text.get_color() in COLORS:
            text.set_color(as_text(text.get_color()))


def lines(
    series: Mapping[str, Line],
    *,
    x: str,
    y: str,
    alt: str = "",
    title: str = "",
    log: str = "",
    theory: Mapping[str, Line] | None = None,
    band: Mapping[str, Line] | None = None,
    labels: str = "",
    caption: str = "",
    ax: Axes | None = None,
) -> None:
    """Measured points, each series with its own colour and marker; `theory` is drawn dashed.

    `band[name] = (low, high)` shades the spread; `log` is "", "x", "y" or "xy"; a theory whose name
    starts with a series' name takes its colour. `labels`: "direct" (at the line's end), "legend",
    "none", or "": no label for a single line, direct where short names fit.
    """
    with drawing(ax, alt, caption) as axes:
        ends, own = [], cycle(DASHES)
        for i, (name, (xs, ys)) in enumerate(series.items()):
            color = COLORS[i % len(COLORS)]
            style = {"color": color, "marker": MARKERS[i % len(MARKERS)]}
            axes.plot(xs, ys, label=name, **style)
            if band and name in band:
                axes.fill_between(xs, *band[name], color=color, alpha=0.15, linewidth=0)
            ends.append((name, color, xs[-1], ys[-1]))
        for name, (xs, ys) in (theory or {}).items():
            match = [i for i, known in enumerate(series) if name.startswith(known)]
            color = COLORS[match[0] % len(COLORS)] if match else INK
            dashes = "--" if match else next(own)
            axes.plot(xs, ys, dashes, color=color, linewidth=1.3, label=name)
            if not match:
                ends.append((name, color, xs[-1], ys[-1]))
        finish(axes, x, y, title, log)
        alone = len(series) + len(theory or {}) == 1
        labels = labels or ("none" if alone else where_names_stand(axes, ends))
        if labels == "direct":
            label_ends(axes, ends)
        elif labels == "legend":
            axes.legend()


def finish(axes: Axes, x: str, y: str, title: str = "", log: str = "") -> None:
    """Adds axis labels with units, title, logarithmic axes, thousands separators."""
    axes.set(xlabel=x, ylabel=y)
    axes.set_title(title)
    if "x" in log:
        axes.set_xscale("log", base=2 if "ranks" in x.lower() else 10)
        _tick_doublings(axes)
    if "y" in log:
        axes.set_yscale("log")
    elif max(map(abs, axes.get_ylim())) >= 2000:
        axes.yaxis.set_major_formatter("{x:,.0f}")


def _tick_doublings(axes: Axes) -> None:
    """Ticks at the points, as plain numbers, where these are a few powers of two."""
    places = sorted({float(at) for line in axes.get_lines() for at in line.get_xdata()})
    few = len(places) <= MOST_TICKS and places[0] >= 1 and places[-1] < 10_000
    if few and all(math.log2(at).is_integer() for at in places):
        axes.set_xticks(places, [f"{at:,.0f}" for at in places])
        axes.set_xticks([], minor=True)


def where_names_stand(axes: Axes, ends: Sequence[End]) -> str:
    """ "direct" if the names are short and fit near their lines' ends."""
    short = max(len(name) for name, *_ in ends) <= LONGEST_NAME
    moved = max(shift for *_, shift in placed(axes, ends))
    return "direct" if short and moved <= 1.8 * STEP else "legend"


def placed(axes: Axes, ends: Sequence[End]) -> list[tuple[str, str, float, float, float]]:
    """The ends from the lowest up, each with its label's upward shift in points."""
    axes.autoscale_view()
    per_pixel = 72 / axes.figure.dpi
    found, free = [], -math.inf
    for name, color, at, height in sorted(ends, key=lambda end: _pixel(axes, end)):
        own = per_pixel * _pixel(axes, (name, color, at, height))
        free = max(own, free)
        found.append((name, color, at, height, free - own))
        free += STEP
    return found


def _pixel(axes: Axes, end: End) -> float:
    return axes.transData.transform(end[2:])[1]


def label_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Writes each line's name at its last point, shifted to avoid overlaps."""
    for name, color, at, height, shift in placed(axes, ends):
        axes.annotate(
            name, (at, height), xytext=(7, shift), textcoords="offset points", color=color,
            va="center", fontsize=9, annotation_clip=False, fontweight="bold",
        )  # fmt: skip
