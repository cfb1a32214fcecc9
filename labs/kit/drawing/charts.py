"""Bars and timelines in the house style; `figures.py` has the canvas and the lines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from minitrain.errors import InputError
from minitrain.lab.drawing.colors import COLORS, INK
from minitrain.lab.drawing.figures import drawing, finish
from minitrain.words import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HATCHES = ["", "//", "..", "xx", "\\\\", "++", "oo"]
Span = tuple[str, float, float, str]  # lane, start, end, label


def bars(
    names: Sequence[str],
    values: Sequence[float] | Mapping[str, Sequence[float]],
    *,
    y: str,
    x: str = "",
    alt: str = "",
    title: str = "",
    errors: Sequence[float] | Mapping[str, Sequence[float]] | None = None,
    theory: Sequence[float] | None = None,
    stacked: bool = False,
    caption: str = "",
    ax: Axes | None = None,
) -> None:
    """One bar per name, or a group (or stack) per name if `values` maps series to values.

    `errors` draws the spread; `theory` a short line across each name's bars.
    """
    groups = dict(values) if isinstance(values, Mapping) else {"": list(values)}
    spread = errors if isinstance(errors, Mapping) else {"": errors}
    for label, heights in groups.items():
        if len(heights) != len(names):
            raise InputError(f"bars '{label}': {len(heights)} values for {len(names)} names")
    with drawing(ax, alt, caption) as axes:
        draw_groups(axes, groups, spread, stacked)
        if theory:
            draw_theory(axes, theory)
        axes.set_xticks(range(len(names)), names)
        axes.grid(axis="x", visible=False)
        finish(axes, x, y, title)
        axes.margins(y=0.12)
        if len(groups) > 1 or theory:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def draw_groups(
    axes: Axes,
    groups: Mapping[str, Sequence[float]],
    spread: Mapping[str, Sequence[float] | None],
    stacked: bool,
) -> None:
    """Draws bars side by side with their values above them, or stacked."""
    count = len(next(iter(groups.values())))
    decimals = _decimals([v for heights in groups.values() for v in heights])
    width, base = (0.7 if stacked else 0.7 / len(groups)), [0.0] * count
    for i, (label, heights) in enumerate(groups.items()):
        shift = 0.0 if stacked else (i - (len(groups) - 1) / 2) * width
        drawn = axes.bar(
            [k + shift for k in range(count)], heights, width * 0.94, bottom=base,
            yerr=spread.get(label), capsize=3, label=label or None,
            color=COLORS[i % len(COLORS)], hatch=HATCHES[i % len(HATCHES)],
            edgecolor="white", linewidth=0, ecolor=INK,
        )  # fmt: skip
        for empty in (bar for bar in drawn if not bar.get_height()):
            empty.sticky_edges.y.clear()  # or a stack that ends with it has no room above
        if stacked:
            base = [low + high for low, high in zip(base, heights)]
        else:
            texts = [_height_text(v, decimals) for v in heights]
            axes.bar_label(drawn, texts, padding=2, fontsize=8)


def _decimals(values: Sequence[float]) -> int:
    """Decimals that show the largest number in three digits; none where all are integers."""
    largest = max(map(abs, values), default=0)
    if not largest or all(v == int(v) for v in values):
        return 0
    return max(0, 2 - math.floor(math.log10(largest)))


def _height_text(value: float, decimals: int) -> str:
    """The value with these decimals; a small one keeps its own digits."""
    small = 0 < abs(value) < 0.5 * 10**-decimals
    return f"{value:.1g}" if small else f"{value:,.{decimals}f}"


def draw_theory(axes: Axes, theory: Sequence[float]) -> None:
    places = range(len(theory))
    left, right = [k - 0.4 for k in places], [k + 0.4 for k in places]
    style = {"linestyles": "--", "color": INK, "linewidth": 1.3}
    axes.hlines(theory, left, right, label="predicted", **style)


def timeline(
    spans: Sequence[Span],
    *,
    alt: str = "",
    title: str = "",
    caption: str = "",
    ax: Axes | None = None,
) -> None:
    """A Gantt chart: `(lane, start, end, label)` in ms; lanes from the top in their first order.

    Equal labels have equal colours; a label is written inside where it fits.
    """
    lanes = list(dict.fromkeys(span[0] for span in spans))
    kinds = list(dict.fromkeys(span[3] for span in spans))
    if not spans:
        raise InputError("a timeline of no spans: give (lane, start, end, label) tuples")
    whole = max(end for _, _, end, _ in spans) - min(start for _, start, _, _ in spans)
    with drawing(ax, alt or spent(spans), caption) as axes:
        for lane, start, end, label in spans:
            place, color = lanes.index(lane), COLORS[kinds.index(label) % len(COLORS)]
            axes.barh(place, end - start, 0.64, left=start, color=color, edgecolor="white")
            if end - start > 0.012 * whole * (len(label) + 2):
                style = {"color": "white", "va": "center", "ha": "center", "fontsize": 8}
                axes.text((start + end) / 2, place, label, **style)
        for kind in kinds:
            axes.barh(0, 0, 0, color=COLORS[kinds.index(kind) % len(COLORS)], label=kind)
        axes.set_yticks(range(len(lanes)), lanes)
        axes.set_ylim(len(lanes) - 0.5, -0.5)
        axes.grid(axis="y", visible=False)
        finish(axes, "time (ms)", "", title)
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))


def spent(spans: Sequence[Span]) -> str:
    """ "Timeline: rank 0: compute 3.1 ms, wait 0.4 ms; …": the times of each lane, summed."""
    sums: dict[str, dict[str, float]] = {}
    for lane, start, end, label in spans:
        own = sums.setdefault(lane, {})
        own[label] = own.get(label, 0.0) + end - start
    words = [
        f"{lane}: {', '.join(f'{label} {number_text(time)} ms' for label, time in own.items())}"
        for lane, own in sums.items()
    ]
    return f"Timeline: {'; '.join(words)}."
