"""What each token reads where n learned keys and values stand before the text: all of them, always.

(Li and Liang 2021.) The mask has n columns more, free for every row; the text is causal as before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORDS = ("the", "old", "boat", "sank")
LEFT, TOP, SIDE = 2.0, 0.9, 0.6


def readable(row: int, column: int, count: int) -> bool:
    """Columns from 0 are the learned ones, then the text's."""
    return column < count + row + 1


def read_in_all(count: int) -> int:
    columns = count + len(WORDS)
    return sum(readable(r, c, count) for r in range(len(WORDS)) for c in range(columns))


def draw_prefix_columns(ax: Axes, learned: int) -> None:
    bare(ax, 12.4, TOP + SIDE * len(WORDS) + 0.6)
    for column in range(learned + len(WORDS)):
        x = LEFT + SIDE * column
        name = f"p{column}" if column < learned else WORDS[column - learned]
        say(ax, x + SIDE / 2 - 0.03, TOP - 0.25, name, 8)
        for row in range(len(WORDS)):
            hue = lighter(ORANGE, 0.25) if column < learned else BLUE
            free = readable(row, column, learned)
            box(ax, x, TOP + SIDE * row, SIDE - 0.06, SIDE - 0.06, hue if free else PALE)
    for row, word in enumerate(WORDS):
        say(ax, LEFT - 0.2, TOP + SIDE * (row + 0.45), word, 8, ha="right")
    say(ax, 0.1, 0.15, "who reads", 9, ha="left", fontweight="bold")
    say(ax, LEFT, 0.15, "keys and values", 9, ha="left", fontweight="bold")
    x = LEFT + SIDE * (4 + len(WORDS)) + 0.3
    lines = (
        "orange: learned, made by no token",
        "blue: made by the text, causal",
        "grey: not read",
    )
    for row, words in enumerate(lines):
        say(ax, x, TOP + 0.3 + 0.5 * row, words, 9, ha="left")


def say_prefix_columns(learned: int) -> str:
    pairs = "key and value" if learned == 1 else "keys and values"
    return (
        f"After {learned} learned {pairs}, {len(WORDS)} words read {read_in_all(learned)} keys. "
        f"Each word reads the {learned} learned {pairs} first, which no token made, and then its "
        "own and those before it."
    )


prefix_columns = Schematic(
    draw_prefix_columns, say_prefix_columns, (9.5, 2.8), {"learned": ([1, 2, 3, 4], 2)}
)
