"""One small wordless picture per lab, drawn for its size.

Each is drawn by a pen in a square of its own, x from 0 on the left to 1, y from 0 at the top to 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minitrain.lab.drawing.colors import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.shapes import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GREY, LIGHT = "#777777", "#cfcfcf"
FOUR = (BLUE, ORANGE, GREEN, PINK)


@dataclass(frozen=True)
class Pen:
    """Draws on `ax` in the square of `side` whose upper left corner is (left, top)."""

    ax: Axes
    left: float
    top: float
    side: float

    def box(
        self, x: float, y: float, width: float, height: float, color: str, edge: str = "none"
    ) -> None:
        from matplotlib.patches import Rectangle

        size = width * self.side, height * self.side
        style = {"facecolor": color, "edgecolor": edge, "linewidth": 0.8}
        self.ax.add_patch(Rectangle(self.at(x, y), *size, **style))

    def line(self, *points: Point, color: str = GREY, width: float = 1.4, style: str = "-") -> None:
        xs, ys = zip(*(self.at(*point) for point in points))
        self.ax.plot(xs, ys, style, color=color, linewidth=width, solid_capstyle="round")

    def arrow(self, start: Point, end: Point, color: str = GREY, bend: float = 0.0) -> None:
        style = {"arrowstyle": "-|>", "color": color, "linewidth": 1.1, "mutation_scale": 6}
        style |= {"shrinkA": 0, "shrinkB": 0, "connectionstyle": f"arc3,rad={bend}"}
        self.ax.annotate("", xytext=self.at(*start), xy=self.at(*end), arrowprops=style)

    def dots(self, points: Sequence[Point], color: str, size: float = 4) -> None:
        xs, ys = zip(*(self.at(*point) for point in points))
        self.ax.plot(xs, ys, "o", color=color, markersize=size)

    def at(self, x: float, y: float) -> Point:
        return self.left + x * self.side, self.top + y * self.side


def ring(pen: Pen) -> None:
    """Ranks that each send to the next."""
    corners = [(0.15, 0.15), (0.85, 0.15), (0.85, 0.85), (0.15, 0.85)]
    pen.dots(corners, BLUE, 7)
    for (x, y), (nx, ny) in zip(corners, corners[1:] + corners[:1]):
        near, far = (
            (x + 0.2 * (nx - x), y + 0.2 * (ny - y)),
            (x + 0.8 * (nx - x), y + 0.8 * (ny - y)),
        )
        pen.arrow(near, far)


def roof(pen: Pen) -> None:
    """A roofline with measurements below it."""
    pen.line((0.02, 0.95), (0.55, 0.25), (1, 0.25), color=BLUE, width=2)
    pen.dots([(0.25, 0.8), (0.55, 0.5), (0.85, 0.4)], ORANGE)


def replicas(pen: Pen) -> None:
    """Four identical models, whose gradients are averaged."""
    for place in range(4):
        pen.box(0.02 + 0.26 * place, 0.08, 0.18, 0.5, BLUE)
        pen.line((0.11 + 0.26 * place, 0.62), (0.11 + 0.26 * place, 0.85))
    pen.line((0.11, 0.85), (0.89, 0.85), color=ORANGE, width=2.2)


def columns(pen: Pen) -> None:
    """One matrix, cut into a piece a rank."""
    for place, color in enumerate(FOUR):
        pen.box(0.05 + 0.235 * place, 0.1, 0.2, 0.8, color)


def staircase(pen: Pen) -> None:
    """Microbatches moving through the stages."""
    for stage, color in enumerate(FOUR):
        for step in range(3):
            pen.box(0.02 + 0.165 * (stage + step), 0.1 + 0.21 * stage, 0.14, 0.17, color)


def experts(pen: Pen) -> None:
    """A token, routed to two of four experts."""
    for place in range(4):
        chosen = place in (0, 2)
        pen.line((0.14, 0.5), (0.66, 0.14 + 0.24 * place), color=ORANGE if chosen else LIGHT)
        pen.box(0.68, 0.05 + 0.24 * place, 0.28, 0.18, BLUE if chosen else LIGHT)
    pen.dots([(0.1, 0.5)], ORANGE, 6)


def causal(pen: Pen) -> None:
    """Blocks of a causal mask, by the rank that holds the keys."""
    for row in range(4):
        for column in range(row + 1):
            pen.box(0.06 + 0.225 * column, 0.06 + 0.225 * row, 0.2, 0.2, FOUR[column])


def meshes(pen: Pen) -> None:
    """A mesh inside a mesh."""
    for place in range(4):
        left, top = 0.04 + 0.5 * (place % 2), 0.04 + 0.5 * (place // 2)
        pen.box(left, top, 0.44, 0.44, "white", GREY)
        for inner, color in enumerate((BLUE, BLUE, ORANGE, ORANGE)):
            x, y = left + 0.06 + 0.17 * (inner % 2), top + 0.06 + 0.17 * (inner // 2)
            pen.box(x, y, 0.14, 0.14, color)


def melting(pen: Pen) -> None:
    """A rank's memory, shrinking with each ZeRO stage."""
    for place, heights in enumerate([(0.24, 0.1, 0.5), (0.24, 0.1, 0.13), (0.24, 0.03, 0.13),
                                     (0.06, 0.03, 0.13)]):  # fmt: skip
        below = 0.94
        for height, color in zip(heights, (BLUE, GREEN, ORANGE)):
            below -= height
            pen.box(0.04 + 0.25 * place, below, 0.18, height, color)


def number_line(pen: Pen) -> None:
    """Representable floats: dense near zero."""
    pen.line((0, 0.65), (1, 0.65))
    for power in range(4):
        for part in range(4):
            x = 2**-power * (1 - part / 8)
            pen.line((x, 0.65), (x, 0.25 if part == 0 else 0.45), color=BLUE)


def recomputed(pen: Pen) -> None:
    """Two of five layers are kept, the others recomputed."""
    for place in range(5):
        kept = place in (0, 3)
        color = (BLUE, "none") if kept else ("white", LIGHT)
        pen.box(0.02 + 0.2 * place, 0.5, 0.15, 0.4, *color)
    pen.arrow((0.1, 0.42), (0.58, 0.42), ORANGE, bend=-0.6)


def low_rank(pen: Pen) -> None:
    """A frozen matrix, and the two thin trained ones beside it."""
    pen.box(0.02, 0.3, 0.56, 0.56, LIGHT)
    pen.box(0.68, 0.3, 0.1, 0.56, ORANGE)
    pen.box(0.68, 0.1, 0.3, 0.1, ORANGE)


def low_rank_over_codes(pen: Pen) -> None:
    """The same over a matrix of codes."""
    for row in range(4):
        for column in range(4):
            color = (BLUE, LIGHT, GREY, LIGHT)[(3 * row + column * column) % 4]
            pen.box(0.02 + 0.145 * column, 0.3 + 0.145 * row, 0.12, 0.12, color)
    pen.box(0.68, 0.3, 0.1, 0.56, ORANGE)
    pen.box(0.68, 0.1, 0.3, 0.1, ORANGE)


def stairs(pen: Pen) -> None:
    """A line, rounded to few levels."""
    pen.line((0.02, 0.95), (0.98, 0.05), color=LIGHT, width=1.6)
    corners = [(0.02, 0.95)]
    for step in range(4):
        level = 0.83 - 0.24 * step
        corners += [(corners[-1][0], level), (0.26 + 0.24 * step, level)]
    pen.line(*corners, color=BLUE, width=1.8)


def pages(pen: Pen) -> None:
    """A pool of blocks, coloured by owner."""
    owners = "b.oobg..gg.bo.gb"
    colors = {"b": BLUE, "o": ORANGE, "g": GREEN, ".": "white"}
    for place, owner in enumerate(owners):
        x, y = 0.04 + 0.24 * (place % 4), 0.04 + 0.24 * (place // 4)
        pen.box(x, y, 0.2, 0.2, colors[owner], LIGHT if owner == "." else "none")


def guesses(pen: Pen) -> None:
    """Draft tokens: three accepted, one rejected."""
    for place in range(4):
        pen.box(0.02 + 0.25 * place, 0.38, 0.2, 0.24, GREEN if place < 3 else "white", GREY)
    pen.line((0.8, 0.42), (0.94, 0.58), color=ORANGE, width=2)
    pen.line((0.8, 0.58), (0.94, 0.42), color=ORANGE, width=2)
    pen.arrow((0.04, 0.28), (0.7, 0.28), GREEN, bend=-0.25)


def front(pen: Pen) -> None:
    """Plans by price and time; on the front nothing is better in both."""
    best = [(0.1, 0.12), (0.22, 0.42), (0.45, 0.66), (0.9, 0.8)]
    pen.line(*best, color=BLUE)
    pen.dots(best, BLUE)
    pen.dots([(0.45, 0.25), (0.65, 0.42), (0.85, 0.3), (0.8, 0.58)], LIGHT)


def funnel(pen: Pen) -> None:
    """Data shrinking through filters."""
    for step, width in enumerate((0.96, 0.74, 0.5, 0.34)):
        pen.box(0.5 - width / 2, 0.06 + 0.23 * step, width, 0.18, BLUE if step < 3 else GREEN)


def resumed(pen: Pen) -> None:
    """A falling loss, a fault, and the same loss resumed from the last save."""
    curve = [(x, 0.12 + 0.72 * (1 - math.exp(-3 * x))) for x in (i / 20 for i in range(20))]
    pen.line(*curve[:12], color=BLUE, width=2)
    pen.line(*curve[8:], color=GREEN, width=2)
    pen.line((0.55, 0.02), (0.55, 0.98), color=ORANGE, style="--")
    pen.dots([curve[8]], GREEN)


def far_sites(pen: Pen) -> None:
    """Two sites, and the thin wire between them."""
    for x in (0.02, 0.68):
        for place in range(4):
            pen.box(x + 0.16 * (place % 2), 0.34 + 0.16 * (place // 2), 0.13, 0.13, BLUE)
    pen.line((0.36, 0.5), (0.66, 0.5), color=ORANGE, width=1.2, style="--")


def tilting(pen: Pen) -> None:
    """A distribution, and the same tilted towards what earns more."""
    for step, (before, after) in enumerate(((0.7, 0.15), (0.5, 0.3), (0.3, 0.5), (0.15, 0.85))):
        pen.box(0.04 + 0.24 * step, 0.95 - before, 0.09, before, LIGHT)
        pen.box(0.14 + 0.24 * step, 0.95 - after, 0.09, after, GREEN)


def states(pen: Pen) -> None:
    """A cache that grows, and a state that does not."""
    for place in range(4):
        pen.box(0.06 + 0.24 * place, 0.1, 0.18, 0.12 + 0.09 * place, ORANGE)
        pen.box(0.06 + 0.24 * place, 0.66, 0.18, 0.22, BLUE)


def descent(pen: Pen) -> None:
    """Four stacks, each lower than the one before."""
    for place, color in enumerate(FOUR):
        pen.box(0.05 + 0.235 * place, 0.1 + 0.2 * place, 0.2, 0.8 - 0.2 * place, color)


GLYPHS: dict[str, Callable[[Pen], None]] = {
    "e00": ring,
    "e01": roof,
    "e02": replicas,
    "e02b": columns,
    "e02c": staircase,
    "e02d": experts,
    "e02e": causal,
    "e02f": meshes,
    "e02g": far_sites,
    "e03": melting,
    "e04": number_line,
    "e05": recomputed,
    "e06": low_rank,
    "e07": low_rank_over_codes,
    "e08": stairs,
    "e09": pages,
    "e09b": guesses,
    "e10": front,
    "e11": funnel,
    "e12": resumed,
    "e13": tilting,
    "e14": states,
    "e15": descent,
}
