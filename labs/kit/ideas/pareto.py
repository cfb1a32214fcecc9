"""The Pareto front: points that no other point beats in both costs. The points are invented."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import INK, finish
from minitrain.lab.drawing.shapes import PALE
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POINTS = (  # (days, price in thousand dollars)
    (3, 95), (4, 70), (4, 88), (6, 52), (7, 66), (8, 50), (9, 74), (11, 41), (13, 58), (15, 41),
    (17, 30), (19, 47), (22, 33),
)  # fmt: skip


def front() -> list[tuple[float, float]]:
    """The points that no other is as good as in both and better in one, by days."""
    return [
        (days, price)
        for days, price in sorted(POINTS)
        if not any(d <= days and p <= price and (d, p) != (days, price) for d, p in POINTS)
    ]


def draw_pareto(ax: Axes, point: int) -> None:
    days, price = POINTS[point]
    best = front()
    ax.fill_between([0, days], 0, price, color=PALE, zorder=0)
    ax.plot(*zip(*best), "-", color=BLUE, drawstyle="steps-post")
    beaten = "beaten: another is at least\nas good in both"
    ax.plot(*zip(*POINTS), "o", color="#8a8a8a", label=beaten)
    ax.plot(*zip(*best), "s", color=BLUE, markersize=7, label="on the front")
    ring = {"markersize": 11, "fillstyle": "none", "markeredgewidth": 2.4}
    ax.plot([days], [price], "o", color=ORANGE, label="the chosen one", **ring)
    words = {"textcoords": "offset points", "fontsize": 9, "color": INK}
    ax.annotate("at least as fast\nand as cheap", (0.4, 3), xytext=(0, 0), **words)
    ax.set_xlim(0, 24)
    ax.set_ylim(0, 105)
    finish(ax, "time (days)", "price (thousand dollars)")
    title = {"title": "a point: one way to train (invented)", "title_fontsize": 9}
    ax.legend(loc="upper right", fontsize=9, alignment="left", **title)


def say_pareto(point: int) -> str:
    days, price = POINTS[point]
    better = sum(d <= days and p <= price and (d, p) != (days, price) for d, p in POINTS)
    found = "on the front: none is as fast and as cheap" if not better else (
        f"beaten by {plural(better, 'point')} in its grey corner"
    )  # fmt: skip
    return (
        f"{days} days, {price} thousand dollars: {found}. Of {len(POINTS)} points {len(front())} "
        "form the front, a staircase from fast and dear to slow and cheap; the grey rectangle "
        "holds all that is at least as fast and as cheap as the chosen point."
    )


pareto_front = Schematic(draw_pareto, say_pareto, (7.0, 4.4), {"point": (0, len(POINTS) - 1, 4)})
