"""One scale for a whole matrix, or one for each tile: how far an outlier reaches.

A scale is the largest magnitude of its tile over the largest number of the format. Where an
outlier sets it, the other numbers of the same tile share the coarse scale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS, COLUMNS = 4, 16
OUTLIER = (1, 5)  # its row and column
TILES = {"one scale": (ROWS, COLUMNS), "1 x 4 blocks": (1, 4), "2 x 4 blocks": (2, 4)}
LEFT, TOP, SIDE = 0.4, 0.4, 0.46


def sharing(tile: str) -> int:
    """How many ordinary numbers have the outlier's scale."""
    rows, columns = TILES[tile]
    return rows * columns - 1


def draw_block_scales(ax: Axes, tile: str) -> None:
    bare(ax, 12.2, TOP + SIDE * ROWS + 0.7)
    high, wide = TILES[tile]
    home = OUTLIER[0] // high, OUTLIER[1] // wide
    for row in range(ROWS):
        for column in range(COLUMNS):
            place = row // high, column // wide
            gap_x, gap_y = 0.12 * place[1], 0.1 * place[0]
            is_outlier = (row, column) == OUTLIER
            color = lighter(ORANGE if place == home else BLUE, 0.6)
            color = ORANGE if is_outlier else color
            x, y = LEFT + SIDE * column + gap_x, TOP + SIDE * row + gap_y
            words = "10⁵" if is_outlier else ""
            box(ax, x, y, SIDE - 0.04, SIDE - 0.04, color, words, 10)
    count = ROWS * COLUMNS // (high * wide)
    lines = (
        f"scales kept: {count}",
        f"under the outlier's coarse scale:\n{sharing(tile)} of the {ROWS * COLUMNS - 1} others",
    )
    for n, words in enumerate(lines):
        say(ax, 8.6, 0.8 + 0.6 * n, words, 9.5, ha="left", va="top")
    legend = "dark: the outlier    orange: under its scale"
    legend += "    blue: each block has a scale of its own" if count > 1 else ""
    say(ax, LEFT, TOP + SIDE * ROWS + 0.54, legend, ha="left")


def say_block_scales(tile: str) -> str:
    high, wide = TILES[tile]
    count = ROWS * COLUMNS // (high * wide)
    each = f"each of the {count} tiles has one scale" if count > 1 else "it has one scale"
    return (
        f"A matrix of {ROWS} x {COLUMNS} numbers, {tile}: {sharing(tile)} share the outlier's "
        f"scale. A tile is {high} x {wide}; {each}, set by its own largest magnitude."
    )


block_scales = Schematic(
    draw_block_scales, say_block_scales, (9.5, 2.4), {"tile": (list(TILES), "1 x 4 blocks")}
)
