"""A map of the labs as boxes with small pictures, each below the labs that it builds on.

An edge leads down from each lab to those whose last prerequisite it is; in a row the rightmost
lab's edge is on top.

    ┌─────┐    ┌─────┐
    │ e02 │    │ e05 │
    └──┬──┘    └──┬──┘
       │          └───┐
       ├──────────┬───┼─┐
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minitrain.lab.drawing.colors import GREEN, PALE
from minitrain.lab.drawing.display import Rich
from minitrain.lab.drawing.figures import canvas, picture
from minitrain.lab.drawing.glyphs import GLYPHS, Pen
from minitrain.lab.drawing.shapes import arrow, bare, box, rectangle, write
from minitrain.words import plural, points_text, score_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS, DOWN = 2.06, 1.03  # spacing of boxes, in inches
WIDE, TALL = 1.92, 0.74  # of a box
PICTURE, EDGE = 0.52, 0.1  # side of the small picture, and its margin
ARROW = "#777777"


@dataclass(frozen=True)
class Standing:
    """One lab: its title, minutes, and points earned and possible."""

    name: str
    title: str
    minutes: str
    before: tuple[str, ...]  # names of its prerequisite labs
    earned: float
    total: float
    open_items: tuple[str, ...]

    @property
    def short(self) -> str:
        """Its number."""
        return self.name.partition("_")[0]

    @property
    def link(self) -> str:
        """Its title, as a link to its notebook."""
        return f"[{self.title}]({self.name}.ipynb)"

    @property
    def state(self) -> tuple[str, str]:
        """The lab's status as a word and its tone."""
        if not self.open_items:
            return "done", "good"
        return ("begun", "info") if self.earned else ("to do", "wait")


def course_map(labs: Sequence[Standing]) -> Rich:
    """Each lab with its minutes and points, and edges from its prerequisites."""
    places = placed(labs)
    columns, rows = (1 + max(place[i] for place in places.values()) for i in (0, 1))
    inches = ACROSS * columns - (ACROSS - WIDE) + 0.1, DOWN * rows - (DOWN - TALL) + 0.1
    with canvas(width=inches[0], height=inches[1]) as (fig, ax):
        bare(ax, *inches)
        ax.set_title(heading(labs), loc="left", fontsize=12)
        for lab in labs:
            _draw(ax, lab, *corner(places[lab.name]), also_after(lab, labs))
        for row in ways(labs):
            for depth, (start, ends) in enumerate(row, start=1):
                _draw_way(ax, start, ends, depth / (len(row) + 1.7))
        return picture(fig, alt_text(labs))


def heading(labs: Sequence[Standing]) -> str:
    """Points so far, and the total time."""
    score = score_text(sum(lab.earned for lab in labs), sum(lab.total for lab in labs))
    minutes = sum(int(lab.minutes.split()[0]) for lab in labs if lab.minutes)
    return f"{score} · {plural(len(labs), 'lab')} · {minutes / 60:.0f} hours"


def placed(labs: Sequence[Standing]) -> dict[str, tuple[int, int]]:
    """(column, row) of each: below its last prerequisite, in the same column or to the right."""
    places: dict[str, tuple[int, int]] = {}
    for lab in labs:
        before = [places[name][::-1] for name in lab.before if name in places]
        row, column = max(before, default=(-1, 0))
        row += 1
        while (column, row) in places.values():
            column += 1
        places[lab.name] = column, row
    return places


def corner(place: tuple[int, int]) -> tuple[float, float]:
    """The upper left corner of the box at (column, row), in inches."""
    return 0.05 + ACROSS * place[0], 0.05 + DOWN * place[1]


def ways(labs: Sequence[Standing]) -> list[list[tuple[tuple[int, int], list[tuple[int, int]]]]]:
    """Row by row, from the right: a lab's position, and those of the labs whose last prerequisite
    it is; this order avoids crossings."""
    places, found = placed(labs), defaultdict(list)
    for lab in labs:
        if before := [places[name] for name in lab.before if name in places]:
            found[max(before, key=lambda place: place[::-1])].append(places[lab.name])
    rows = sorted({row for _, row in found})
    return [[(p, found[p]) for p in sorted(found, reverse=True) if p[1] == row] for row in rows]


def also_after(lab: Standing, labs: Sequence[Standing]) -> list[str]:
    """Its prerequisites without an edge, by number."""
    known, places = {each.name: each for each in labs}, placed(labs)
    before = [known[name] for name in lab.before if name in known]
    reached = [max(before, key=lambda each: places[each.name][::-1])] if before else []
    for each in reached:
        reached += [known[name] for name in each.before if name in known]
    return [each.short for each in before if each not in reached]


def alt_text(labs: Sequence[Standing]) -> str:
    """The alt text of the map."""
    known = {lab.name: lab.short for lab in labs}
    after = [
        f"{lab.short} after {' and '.join(known[name] for name in lab.before if name in known)}"
        for lab in labs
        if set(lab.before) & set(known)
    ]
    return f"Map of the course. {len(labs)} labs: {', '.join(known.values())}. {'; '.join(after)}."


def _draw(ax: Axes, lab: Standing, x: float, y: float, also: Sequence[str]) -> None:
    box(ax, x, y, WIDE, TALL, PALE, edgecolor="#c4c4c4")
    share = lab.earned / lab.total
    if share:
        ax.add_patch(rectangle(x, y + TALL - 0.07, WIDE * share, 0.07, GREEN))
    if glyph := GLYPHS.get(lab.short):
        glyph(Pen(ax, x + EDGE, y + EDGE, PICTURE))
    name, _, title = lab.title.partition(" · ")
    left = x + (PICTURE + 2 * EDGE if glyph else EDGE)
    words = textwrap.fill(title, 18) + (f"\n(also after {' and '.join(also)})" if also else "")
    points = f"{points_text(lab.earned)}/{points_text(lab.total)}"
    write(ax, left, y + 0.15, name, 9.5, fontweight="bold", ha="left")
    write(ax, left, y + 0.355, words, 8, linespacing=1.0, ha="left")
    write(ax, left, y + 0.57, f"{lab.minutes} · {points}".strip(" ·"), 8, ha="left")


def _draw_way(ax: Axes, start: tuple[int, int], ends: Sequence[tuple[int, int]], at: float) -> None:
    """Draws down, across at the fraction `at` of the gap between rows, and down to each."""
    (left, top), tops = corner(start), [corner(end) for end in ends]
    x, y = left + WIDE / 2, top + TALL
    along = y + at * (DOWN - TALL)
    xs = [x, *(end + WIDE / 2 for end, _ in tops)]
    ax.plot([x, x], [y, along], color=ARROW, linewidth=1.6)
    ax.plot([min(xs), max(xs)], [along, along], color=ARROW, linewidth=1.6)
    for end, below in tops:
        arrow(ax, (end + WIDE / 2, along), (end + WIDE / 2, below), ARROW)
