"""A page table in time: which pages are in memory while an optimizer goes round its state.

Five pages, two rounds, as many frames as the handle says; the page that was touched longest ago
makes room (least recently used).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGES, ROUNDS = 5, 3
LEFT, STEP, HIGH = 1.9, 0.62, 0.44


class Moment(NamedTuple):
    """A touch: the page, whether it was away, and what is resident then, oldest first."""

    page: int
    is_fault: bool
    resident: tuple[int, ...]


def moments(frames: int) -> list[Moment]:
    resident: list[int] = []
    found = []
    for touch in range(PAGES * ROUNDS):
        page = touch % PAGES
        away = page not in resident
        resident = [*(p for p in resident if p != page), page][-frames:]
        found.append(Moment(page, away and touch >= PAGES, tuple(resident)))
    return found


def faults_a_round(frames: int) -> int:
    return sum(moment.is_fault for moment in moments(frames)) // (ROUNDS - 1)


def draw_pages(ax: Axes, frames: int) -> None:
    bare(ax, LEFT + STEP * PAGES * ROUNDS + 0.8, 1.0 + HIGH * PAGES + 0.6)
    for time, moment in enumerate(moments(frames)):
        x = LEFT + STEP * time + 0.25 * (time // PAGES)
        if time % PAGES == 0:
            say(ax, x, 0.25, f"step {time // PAGES + 1}", 9, ha="left", fontweight="bold")
        for page in range(PAGES):
            touched = page == moment.page
            color = PALE if page not in moment.resident else lighter(BLUE, 0.6)
            color = (ORANGE if moment.is_fault else BLUE) if touched else color
            words = "!" if touched and moment.is_fault else ""
            box(ax, x, 0.5 + HIGH * page, STEP - 0.06, HIGH - 0.06, color, words, 9)
    for page in range(PAGES):
        say(ax, LEFT - 0.2, 0.7 + HIGH * page, f"page {page}", 9, ha="right")
    legend = "pale blue: in memory    dark: touched (in step 1: made)    "
    if frames < PAGES:
        legend += "orange: a fault, it was away    "
    say(ax, LEFT, 0.5 + HIGH * PAGES + 0.35, legend + "grey: not in memory", 9, ha="left")
    legend = "columns: one touch after the other"
    if frames < PAGES:
        legend += "; the page touched longest ago makes room"
    say(ax, LEFT, 0.5 + HIGH * PAGES + 0.78, legend, 9, ha="left")


def say_pages(frames: int) -> str:
    return (
        f"{frames} frames for {PAGES} pages: {faults_a_round(frames)} faults a step. In the first "
        "step all pages are made. After that an optimizer touches them in the same order in every "
        "step, and the one touched longest ago makes room."
    )


page_table = Schematic(draw_pages, say_pages, (9.5, 3.0), {"frames": ([3, 4, 5], 4)})
