"""Rotary positions: a query and a key turn with their positions, their product does not.

One pair of numbers of a head, as a point in the plane, turned by ANGLE radians a token (Su et al.,
arXiv 2104.09864).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import INK, lighter
from minitrain.lab.drawing.shapes import Color, Point, arrow, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

QUERY, KEY, ANGLE = (1.0, 0.25), (0.85, -0.3), 0.2
ON = 3  # tokens further, for the pale pair


def turned(point: Point, position: int) -> Point:
    """(a, b) -> (a cos - b sin, b cos + a sin)."""
    (a, b), cos, sin = point, math.cos(ANGLE * position), math.sin(ANGLE * position)
    return a * cos - b * sin, b * cos + a * sin


def product(position: int, distance: int) -> float:
    """q·k of a query at `position` and a key `distance` tokens before it."""
    q, k = turned(QUERY, position), turned(KEY, position - distance)
    return q[0] * k[0] + q[1] * k[1]


def draw_turning(ax: Axes, position: int, distance: int) -> None:
    ax.set_xlim(-3.4, 3.4)
    ax.set_ylim(-1.35, 1.35)
    ax.set_aspect("equal")
    ax.axis("off")
    far = position - distance
    words = f"q by {position} · {ANGLE} rad, k by {far} · {ANGLE} rad; pale: both {ON} tokens on"
    where = {-2.0: ("q and k before", 0, 0), 1.6: (words, position, far)}
    for x, (words, at_query, at_key) in where.items():
        ax.add_patch(_circle(x))
        say(ax, x, -1.25, words)
        if x > 0:
            for on, far_out in ((0, 0.4), (ON, 0.55)):
                _between(ax, x, far_out, turned(KEY, at_key + on), turned(QUERY, at_query + on))
        for name, point, place, color in (
            ("q", QUERY, at_query, BLUE), ("k", KEY, at_key, ORANGE)
        ):  # fmt: skip
            if x > 0:
                a, b = turned(point, place + ON)
                arrow(ax, (x, 0), (x + a, b), lighter(color, 0.6))
            _arrow(ax, x, turned(point, place), color, name)
    arrow(ax, (-0.6, 0), (0.2, 0), lighter(INK, 0.2))
    say(ax, -0.2, 0.12, "turned")


def _circle(x: float):
    from matplotlib.patches import Circle

    return Circle((x, 0), 1.03, facecolor="none", edgecolor="#c4c4c4")


def _between(ax: Axes, x: float, radius: float, start: Point, end: Point) -> None:
    """The arc from one arrow to another: the two pairs' are as wide."""
    from matplotlib.patches import Arc

    ends = [math.degrees(math.atan2(b, a)) for a, b in (start, end)]
    low, high = sorted((ends[0], ends[0] + (ends[1] - ends[0] + 180) % 360 - 180))
    style = {"color": "#666666", "linewidth": 1.2}
    ax.add_patch(Arc((x, 0), 2 * radius, 2 * radius, theta1=low, theta2=high, **style))


def _arrow(ax: Axes, x: float, end: Point, color: Color, name: str) -> None:
    arrow(ax, (x, 0), (x + end[0], end[1]), color)
    far = 1.14 / math.hypot(*end)
    say(ax, x + far * end[0], far * end[1], name, 10)


def say_turning(position: int, distance: int) -> str:
    return (
        f"Query at position {position}, key at {position - distance}: q·k is "
        f"{product(position, distance):.3f}, as wherever these two are {distance} apart. On the "
        f"left a pair of numbers of q and of k as arrows; on the right q is turned by "
        f"{ANGLE * position:.1f} radians and k by {ANGLE * (position - distance):.1f}. Pale: the "
        f"same two {ON} tokens further on; the angle between them, an arc, stays, and with it q·k."
    )


turning = Schematic(
    draw_turning,
    say_turning,
    (8.5, 3.7),
    {"position": ([6, 9, 12, 15, 18], 6), "distance": ([0, 2, 4, 6], 2)},
)
