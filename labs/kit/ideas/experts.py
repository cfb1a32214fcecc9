"""The way of tokens through experts: chosen, sorted by expert, computed, weighted and put back.

Eight tokens choose two of four experts each; the choices are drawn by hand so that one expert is
liked more. An expert's rows go from high to low p; with a capacity it drops the last of them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import INK, lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HUES = (BLUE, ORANGE, GREEN, PINK)
CHOICES = ((0, 1), (0, 2), (1, 0), (0, 3), (2, 0), (1, 3), (0, 2), (3, 0))  # best first, with p:
P = ((60, 30), (50, 40), (50, 45), (70, 20), (60, 30), (55, 30), (56, 35), (61, 20))  # percent
HIGH = 0.5  # of a row
PLACES = 16  # rows that are sorted: tokens x experts a token
NO_LIMIT = "none"


def kept(capacity: str | float) -> list[list[int]]:
    """The tokens that each of the experts computes, from high to low p."""
    asked: list[list[tuple[int, int]]] = [[] for _ in HUES]  # (-p, token)
    for token, two in enumerate(CHOICES):
        for expert in two:
            asked[expert].append((-chance(token, expert), token))
    most = room(capacity)
    return [[token for _, token in sorted(mine)[:most]] for mine in asked]


def room(capacity: str | float) -> int:
    """Rows that an expert computes at most."""
    limit = capacity != NO_LIMIT
    return math.ceil(float(capacity) * PLACES / len(HUES)) if limit else PLACES


def chance(token: int, expert: int) -> int:
    """The p of an expert that the token names, in percent."""
    return P[token][CHOICES[token].index(expert)]


def draw_router(ax: Axes, capacity: str | float) -> None:
    bare(ax, 13.2, HIGH * PLACES + 1.3)
    heads = {
        1.75: "tokens, and their two choices",
        7.25: "rows by expert, from high to low p",
        12.2: "weighted sums",
    }
    for x, words in heads.items():
        say(ax, x, 0.3, words, fontweight="bold")
    rows = [(expert, token) for expert, tokens in enumerate(kept(capacity)) for token in tokens]
    if len(rows) < PLACES:
        say(ax, 0.1, HIGH * PLACES + 1.0, "dashed: dropped, its expert is full", 8.5, ha="left")
    if capacity != NO_LIMIT:
        most = f"{capacity} · {PLACES} / {len(HUES)} = {room(capacity)}"
        say(ax, 7.25, HIGH * PLACES + 1.0, f"kept: {most} rows an expert at most", 8.5)
    say(ax, 12.9, HIGH * PLACES + 1.0, "0: .60 is expert 0, p = 0.60", 8.5, ha="right")
    for token, two in enumerate(CHOICES):
        y = 0.7 + 2 * HIGH * token + HIGH / 2
        box(ax, 0.1, y, 1.1, HIGH - 0.08, "#e4e4e4", f"token {token}", 8.5)
        box(ax, 11.6, y, 1.3, HIGH - 0.08, "#e4e4e4", f"token {token}", 8.5)
        for nth, expert in enumerate(two):
            is_kept = (expert, token) in rows
            style = {} if is_kept else {"linestyle": "--", "edgecolor": INK}
            color = lighter(HUES[expert], 0.25) if is_kept else "white"
            words = f"{expert}: .{chance(token, expert)}"
            box(ax, 1.35 + 0.97 * nth, y, 0.9, HIGH - 0.08, color, words, 8.5, **style)
    for place, (expert, token) in enumerate(rows):
        y = 0.7 + HIGH * place
        color = lighter(HUES[expert], 0.25)
        words = f"expert {expert}: token {token}, .{chance(token, expert)}"
        box(ax, 5.9, y, 2.7, HIGH - 0.08, color, words, 8.5)
        start = 0.7 + 2 * HIGH * token + HIGH / 2 + (HIGH - 0.08) / 2
        middle = y + (HIGH - 0.08) / 2
        style = {"color": HUES[expert], "linewidth": 1, "alpha": 0.8}
        ax.plot([3.3, 5.85], [start, middle], **style)
        ax.plot([8.65, 11.55], [middle, start], **style)


def say_router(capacity: str | float) -> str:
    counts = [len(tokens) for tokens in kept(capacity)]
    dropped = PLACES - sum(counts)
    limit = "without a limit" if capacity == NO_LIMIT else f"at a capacity factor of {capacity}"
    rows = ", ".join(f"expert {e}: {n}" for e, n in enumerate(counts))
    lost = f"{dropped} of {PLACES} choices dropped" if dropped else "no choice dropped"
    return (
        f"Rows of each expert {limit}: {', '.join(map(str, counts))}; {lost}. "
        "Eight tokens on the left, each with its two experts and their p; lines lead to rows in "
        f"the middle, sorted by expert, of one expert from high to low p ({rows}), and back to the "
        "tokens on the right."
    )


router = Schematic(
    draw_router, say_router, (9.5, 5.8), {"capacity": ([1.0, 1.25, 1.5, 2.0, NO_LIMIT], 1.25)}
)
