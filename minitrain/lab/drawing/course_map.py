"""The labs as boxes, from left to right in the order in which they build on one another."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import GREEN, Rich
from minitrain.lab.drawing.figures import canvas, picture
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, rectangle, say
from minitrain.words import points_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS, HIGH = 2.0, 1.1  # from a box to the next; an inch is one
WIDE, TALL = 1.62, 0.85  # of a box
ARROW = "#777777"


@dataclass(frozen=True)
class Standing:
    """One lab: how it is called, how long it takes, how many points of how many are there."""

    name: str
    title: str
    minutes: str
    before: tuple[str, ...]  # names of the labs that it builds on
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
        """A word and its tone."""
        if not self.open_items:
            return "done", "good"
        return ("begun", "info") if self.earned else ("to do", "wait")


def course_map(labs: Sequence[Standing]) -> Rich:
    """Each lab with its minutes and points, and arrows from what should come before it."""
    places = placed(labs)
    columns, rows = (1 + max(place[i] for place in places.values()) for i in (0, 1))
    inches = ACROSS * columns - (ACROSS - WIDE) + 0.1, HIGH * rows
    with canvas(width=inches[0], height=inches[1]) as (fig, ax):
        bare(ax, *inches)
        for lab in labs:
            _draw(ax, lab, places, besides(lab, labs))
        return picture(fig, said(labs))


def placed(labs: Sequence[Standing]) -> dict[str, tuple[int, int]]:
    """(column, row) of each: right of the last that comes before it, on its row or below."""
    places: dict[str, tuple[int, int]] = {}
    for lab in labs:
        column, row = max((places[name] for name in lab.before if name in places), default=(-1, 0))
        column += 1
        while (column, row) in places.values():
            row += 1
        places[lab.name] = column, row
    return places


def besides(lab: Standing, labs: Sequence[Standing]) -> list[str]:
    """The numbers of those that come before it and not before the last of them: no arrow's way."""
    known, places = {each.name: each for each in labs}, placed(labs)
    before = [known[name] for name in lab.before if name in known]
    reached = [max(before, key=lambda each: places[each.name])] if before else []
    for each in reached:
        reached += [known[name] for name in each.before if name in known]
    return [each.short for each in before if each not in reached]


def said(labs: Sequence[Standing]) -> str:
    """The same in words."""
    known = {lab.name: lab.short for lab in labs}
    after = [
        f"{lab.short} after {' and '.join(known[name] for name in lab.before if name in known)}"
        for lab in labs
        if set(lab.before) & set(known)
    ]
    return f"Map of the course. {len(labs)} labs: {', '.join(known.values())}. {'; '.join(after)}."


def _draw(ax: Axes, lab: Standing, places: dict[str, tuple[int, int]], also: Sequence[str]) -> None:
    column, row = places[lab.name]
    x, y = 0.05 + ACROSS * column, 0.12 + HIGH * row
    box(ax, x, y, WIDE, TALL, PALE, edgecolor="#c4c4c4")
    share = lab.earned / lab.total
    if share:
        ax.add_patch(rectangle(x, y + TALL - 0.07, WIDE * share, 0.07, GREEN))
    name, _, title = lab.title.partition(" · ")
    say(ax, x + WIDE / 2, y + 0.15, name, fontweight="bold")
    words = textwrap.fill(title, 20) + (f"\n(also after {' and '.join(also)})" if also else "")
    say(ax, x + WIDE / 2, y + 0.39, words, 8, linespacing=1.0)
    points = f"{points_text(lab.earned)}/{points_text(lab.total)}"
    say(ax, x + WIDE / 2, y + 0.66, f"{lab.minutes} · {points}".strip(" ·"), 7.5)
    if before := [places[name] for name in lab.before if name in places]:
        their_column, their_row = max(before)  # the last: it stands on most others itself
        start = 0.05 + ACROSS * their_column + WIDE, 0.12 + HIGH * their_row + TALL / 2
        arrow(ax, start, (x, y + TALL / 2), ARROW)
