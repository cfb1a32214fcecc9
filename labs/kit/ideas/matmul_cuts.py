"""Two ways to cut Y = X·A over ranks: A by columns, or A by rows and X by columns.

By columns each rank makes some columns of Y, whole: no sum. By rows each makes all of Y, in part:
the parts are added (Shoeybi et al. 2019). A column cut before a row cut needs one sum for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HUES = (BLUE, ORANGE, GREEN, PINK)
ROWS, INNER, OUTER = 1.6, 2.2, 2.8  # of X (rows x inner) and A (inner x outer), as drawn


def cells(
    ax: Axes, x: float, y: float, width: float, height: float, name: str,
    down: int = 1, across: int = 1, pale: bool = False,
) -> None:  # fmt: skip
    """A matrix, cut into so many rows and columns of blocks, one of them 1; a rank is a colour."""
    parts = max(down, across)
    for part in range(parts):
        hue = PALE if pale else lighter(HUES[part], 0.25)
        wide, high = width / across, height / down
        left = x + (part * wide if across > 1 else 0)
        top = y + (part * high if down > 1 else 0)
        words = name if parts == 1 else f"{name}{part}"
        box(ax, left + 0.02, top + 0.02, wide - 0.04, high - 0.04, hue, words, edgecolor="#999999")


def draw_column_cut(ax: Axes, ranks: int) -> None:
    bare(ax, 11, 3.3)
    cells(ax, 0.3, 0.9, INNER, ROWS, "X", pale=True)
    say(ax, 0.3 + INNER / 2, 2.8, "whole, on every rank")
    say(ax, 2.95, 1.7, "·", 24)
    cells(ax, 3.4, 0.6, OUTER, INNER, "A", across=ranks)
    say(ax, 3.4 + OUTER / 2, 3.05, "columns, one piece a rank")
    say(ax, 6.75, 1.7, "=", 16)
    cells(ax, 7.3, 0.9, OUTER, ROWS, "Y", across=ranks)
    say(ax, 7.3 + OUTER / 2, 2.8, "columns: nothing to add")


def say_column_cut(ranks: int) -> str:
    return (
        f"Column cut on {plural(ranks, 'rank')}: rank r makes its columns of Y, forward sends "
        f"nothing. A is cut into {plural(ranks, 'piece')} side by side, X is whole on every rank; "
        "the pieces of Y stand side by side too."
    )


def draw_row_cut(ax: Axes, ranks: int) -> None:
    bare(ax, 15.6, 4.2)
    cells(ax, 0.3, 0.9, INNER, ROWS, "X", across=ranks)
    say(ax, 0.3 + INNER / 2, 2.8, "columns, one piece a rank", 8.5)
    say(ax, 2.95, 1.7, "·", 24)
    cells(ax, 3.4, 0.6, OUTER, INNER, "A", down=ranks)
    say(ax, 3.4 + OUTER / 2, 3.05, "rows, one piece a rank", 8.5)
    say(ax, 6.6, 1.7, "=", 16)
    for part in range(ranks):
        shift = 0.42 * part
        hue = lighter(HUES[part], 0.25)
        box(ax, 7.0 + shift, 0.5 + shift, OUTER, ROWS, hue, edgecolor="white")
        words = f"+ X{part}·A{part}" if part else "X0·A0"
        say(ax, 7.1 + shift, 0.71 + shift, words, 8.5, ha="left", color="black")
    words = "each rank: a part, as large as Y" if ranks > 1 else "Y itself"
    foot = 0.5 + 0.42 * (ranks - 1) + ROWS
    say(ax, 7.0 + OUTER / 2 + 0.21 * (ranks - 1), foot + 0.3, words, 8.5)
    if ranks > 1:
        say(ax, 11.83, 1.55, "all-reduce", 8.5, va="bottom")
        arrow(ax, (11.3, 1.75), (12.4, 1.75))
    cells(ax, 12.6, 0.9, OUTER, ROWS, "Y", pale=True)
    say(ax, 12.6 + OUTER / 2, 2.8, "whole, on every rank", 8.5)


def say_row_cut(ranks: int) -> str:
    how = (
        "each makes a part of Y, an all-reduce adds the parts" if ranks > 1 else "it makes all of Y"
    )
    return (
        f"Row cut on {plural(ranks, 'rank')}: {how}. "
        f"X is cut into {plural(ranks, 'piece')} side by side, A into as many one above the other; "
        "each product has the whole shape of Y."
    )


column_cut = Schematic(draw_column_cut, say_column_cut, (9.5, 3.0), {"ranks": ([1, 2, 4], 2)})
row_cut = Schematic(draw_row_cut, say_row_cut, (9.5, 2.8), {"ranks": ([1, 2, 4], 2)})
