"""GPTQ's way through a matrix: columns that are rounded, that are corrected, that wait.

Within a block each error goes to the columns right of it at once; what is beyond the block gets all
of the block's errors in one matmul (Frantar et al. 2023, figure 2). No block crosses a group.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS, WIDTH, GROUP, BLOCK = 4, 20, 10, 4
SIDE, LEFT, TOP = 0.5, 0.4, 1.0


def spans() -> list[tuple[int, int]]:
    """The blocks: at most BLOCK columns, none over a group's start."""
    return [
        (start, min(start + BLOCK, first + GROUP))
        for first in range(0, WIDTH, GROUP)
        for start in range(first, first + GROUP, BLOCK)
    ]


def block_of(column: int) -> tuple[int, int]:
    return next(span for span in spans() if span[0] <= column < span[1])


def state(column: int, at: int) -> str:
    """What becomes of a column while column `at` is rounded."""
    if column < at:
        return "rounded"
    if column == at:
        return "being rounded"
    return "corrected now" if column < block_of(at)[1] else "waits"


COLORS = {
    "rounded": lighter(BLUE, 0.5),
    "being rounded": ORANGE,
    "corrected now": lighter(GREEN, 0.4),
    "waits": PALE,
}


def draw_column_loop(ax: Axes, column: int) -> None:
    bare(ax, 12.0, 5.0)
    start, stop = block_of(column)
    for place in range(WIDTH):
        x = LEFT + SIDE * place + 0.2 * (place // GROUP)
        say(ax, x + SIDE / 2 - 0.02, TOP - 0.2, str(place), 8.5)
        for row in range(ROWS):
            box(ax, x, TOP + SIDE * row, SIDE - 0.04, SIDE - 0.04, COLORS[state(place, column)])
    for first in range(0, WIDTH, GROUP):
        x = LEFT + SIDE * first + 0.2 * (first // GROUP)
        fitted = "scale fitted" if first <= column else "scale not yet known"
        say(ax, x + SIDE * GROUP / 2, 0.35, f"group {first // GROUP}: {fitted}", 9)
    low, high = (LEFT + SIDE * place + 0.2 * (start // GROUP) for place in (start, stop))
    y = TOP + SIDE * ROWS + 0.25
    ax.plot([low, low, high, high], [y - 0.12, y, y, y - 0.12], color="#444444", linewidth=1.4)
    say(ax, (low + high) / 2, y + 0.25, "block", 9)
    if stop < WIDTH:
        arrow(ax, (high + 0.1, y), (min(high + 2.0, 11.0), y))
        say(ax, high + 0.1, y + 0.35, "after the block: one matmul", 9, ha="left")
    for n, (name, color) in enumerate(COLORS.items()):
        box(ax, LEFT + 2.7 * n, 4.4, 0.3, 0.3, color)
        say(ax, LEFT + 2.7 * n + 0.42, 4.55, name, 9, ha="left")


def say_column_loop(column: int) -> str:
    states = [state(place, column) for place in range(WIDTH)]
    start, stop = block_of(column)
    return (
        f"Column {column} is rounded: {states.count('corrected now')} columns take up its error "
        f"now, {states.count('waits')} wait. {states.count('rounded')} of {WIDTH} are rounded. Its "
        f"block is columns {start} to {stop - 1}; those that wait get all errors of the block in "
        f"one matmul after it. A group has {GROUP} columns, and no block runs over its start."
    )


column_loop = Schematic(
    draw_column_loop, say_column_loop, (9.5, 4.0), {"column": (0, WIDTH - 1, 5)}
)
