"""The S-curve: how likely two documents meet, by how alike they are, for b bands of r rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLACES = 128
LEFT, TOP, WIDE, HIGH = 1.0, 0.5, 7.0, 4.0
COPIES = {"5%": 0.63, "15%": 0.285, "30%": 0.09}  # of the words replaced: the similarity


def meets(similarity: float, rows: int) -> float:
    """1 - (1 - s^r)^b, with as many bands as there is room for."""
    return 1 - (1 - similarity**rows) ** (PLACES // rows)


def half(rows: int) -> float:
    """The similarity at which a pair meets with probability one half."""
    return (1 - 0.5 ** (rows / PLACES)) ** (1 / rows)


def cut_in(rows: int) -> str:
    return f"{PLACES // rows} bands of {plural(rows, 'row')}"


def at(similarity: float, probability: float) -> tuple[float, float]:
    return LEFT + WIDE * similarity, TOP + HIGH * (1 - probability)


def draw_s_curve(ax: Axes, rows: int) -> None:
    bare(ax, 11.2, 5.5)
    steps = [i / 200 for i in range(201)]
    for other in (1, 2, 4, 8, 16, 32):
        points = [at(s, meets(s, other)) for s in steps]
        style = {"color": BLUE, "linewidth": 2.4} if other == rows else {"color": "#d0d0d0"}
        ax.plot(*zip(*points), **style)
    for corner in ((0.0, 0.0), (1.0, 0.0)):
        ax.plot(
            *zip(at(*corner), at(0.0, 1.0) if corner == (0.0, 0.0) else at(0, 0)), color="#666666"
        )
    ax.plot(*zip(at(0, 0.5), at(half(rows), 0.5), at(half(rows), 0)), ":", color="#666666")
    say(ax, *at(0.5, -0.17), "Jaccard similarity", 9)
    say(ax, *at(-0.1, 0.5), "probability of meeting", 9, rotation=90)
    for s in (0, 0.5, 1):
        say(ax, *at(s, -0.06), f"{s:g}", 8)
        say(ax, *at(-0.04, s), f"{s:g}", 8)
    for (words, s), color in zip(COPIES.items(), (ORANGE, GREEN, lighter(BLUE, 0.2))):
        ax.plot(*at(s, meets(s, rows)), "o", color=color, markersize=8)
        x, y = LEFT + WIDE + 0.5, TOP + 2.2 + 0.5 * list(COPIES).index(words)
        ax.plot([x], [y], "o", color=color, markersize=7)
        say(ax, x + 0.2, y, f"{words} of the words replaced", 9, ha="left")
    words = f"{cut_in(rows)}\nhalf of the pairs at {half(rows):.2f}"
    say(ax, LEFT + WIDE + 0.4, TOP + 0.25, words, 9.5, ha="left", fontweight="bold")
    words = "meeting: all rows of a band agree"
    say(ax, LEFT + WIDE + 0.4, TOP + 0.85, words, 8.5, ha="left")
    say(ax, LEFT + WIDE + 0.4, TOP + 1.7, "a page and its copy, with", 9, ha="left")
    words = f"grey: {PLACES} places in other bands"
    say(ax, LEFT + WIDE + 0.4, TOP + 3.9, words, 8.5, ha="left")


def say_s_curve(rows: int) -> str:
    above = [words for words, s in COPIES.items() if s > half(rows)]
    below = [words for words in COPIES if words not in above]
    sides = [
        f"with {' or '.join(w)} of their words replaced are {side}"
        for w, side in ((above, "above"), (below, "below"))
        if w
    ]
    return (
        f"{cut_in(rows)}: half of the pairs of similarity {half(rows):.2f} meet. The "
        "probability of meeting rises from 0 to 1 as an S. "
        f"Of the copies, those {', those '.join(sides)} that similarity."
    )


s_curve = Schematic(draw_s_curve, say_s_curve, (9.5, 4.4), {"rows": ([1, 2, 4, 8, 16, 32], 4)})
