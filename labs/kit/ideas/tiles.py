"""Attention in tiles: the walk over the scores, and what is carried from tile to tile.

For one row of queries: the running maximum, the running sum of exponentials, and how much of what
was summed before is kept when the maximum grows, exp(old - new) (Milakov & Gimelshein 2018; Dao et
al. 2022). The scores are drawn by hand.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SCORES = ((1.0, 0.0), (3.0, 1.0), (2.0, 2.0), (5.0, 1.0))  # of one query, tile by tile
TILES = len(SCORES)
SIDE, LEFT, TOP = 0.95, 1.4, 0.9


def carried(tile: int) -> tuple[float, float, float]:
    """(maximum, sum, share kept of the sum before) after the tiles 0 … tile."""
    top, total, kept = -math.inf, 0.0, 0.0
    for scores in SCORES[: tile + 1]:
        new = max(top, *scores)
        kept = math.exp(top - new)
        total = total * kept + sum(math.exp(s - new) for s in scores)
        top = new
    return top, total, kept


def draw_attention_tiles(ax: Axes, tile: int) -> None:
    bare(ax, 13.2, TOP + SIDE * TILES + 0.85)
    say(ax, LEFT + SIDE * TILES / 2, 0.25, "keys and values, tile by tile")
    for row in range(TILES):
        say(ax, LEFT - 0.1, TOP + SIDE * (row + 0.5), f"queries {row}", ha="right")
        for column in range(TILES):
            is_now = row == TILES - 1 and column == tile
            is_done = column < tile if row == TILES - 1 else column <= row
            color = "white" if column > row else "#dcdcdc"
            color = ORANGE if is_now else lighter(BLUE, 0.5) if is_done else color
            words = ", ".join(f"{s:g}" for s in SCORES[column]) if row == TILES - 1 else ""
            box(ax, LEFT + SIDE * column + 0.03, TOP + SIDE * row + 0.03, SIDE - 0.06, SIDE - 0.06,
                color, words if column <= tile else "", edgecolor="#cccccc")  # fmt: skip
    legend = "white: masked, never computed   blue: done and forgotten   orange: in memory"
    say(ax, 0.2, TOP + SIDE * TILES + 0.27, f"{legend}   grey: still to come", ha="left")
    legend = "numbers: one query's scores of the tile's two keys   sum of exp: of score - maximum"
    say(ax, 0.2, TOP + SIDE * TILES + 0.6, legend, ha="left")
    x = LEFT + SIDE * TILES + 1.0
    heads = ("after tile", "maximum", "sum of exp", "factor on old sum\nexp(old - new)")
    for place, words in enumerate(heads):
        say(ax, x + 1.75 * place + 0.5, TOP + 0.05, words, 8.5, fontweight="bold")
    for done in range(TILES):
        y = TOP + 0.65 + 0.65 * done
        top, total, kept = carried(done)
        values = (str(done), f"{top:g}", f"{total:.3f}", f"{kept:.3f}" if done else "-")
        if done <= tile:
            color = lighter(ORANGE, 0.75) if done == tile else "white"
            box(ax, x - 0.3, y - 0.24, 7.0, 0.48, color)
            for place, words in enumerate(values):
                say(ax, x + 1.75 * place + 0.5, y, words)


def say_attention_tiles(tile: int) -> str:
    top, total, kept = carried(tile)
    step = f"What was summed before is multiplied by exp(old - new) = {kept:.3f}. " if tile else ""
    return (
        f"After tile {tile} of the last row: maximum {top:g}, sum of exponentials {total:.3f}. "
        f"{step}The grid has queries as rows and keys as columns, in tiles; those above the "
        "diagonal are masked, those before this one are done, and only one tile is ever in memory."
    )


attention_tiles = Schematic(
    draw_attention_tiles, say_attention_tiles, (9.5, 3.8), {"tile": (0, TILES - 1, 1)}
)
