"""Block tables of texts that share a beginning: who holds which block, moment by moment.

Blocks of 4 tokens, as Kwon et al. 2023, section 4, draw them; six blocks in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLOCKS = 6
HUES = {"A": lighter(BLUE, 0.5), "B": lighter(ORANGE, 0.5), "C": lighter(GREEN, 0.5)}


class Moment(NamedTuple):
    """Tables by text, what each block holds, and what has happened."""

    tables: dict[str, list[int]]
    content: dict[int, str]
    words: str
    copied: tuple[int, int] | None = None


ONCE, TIME, LITTLE = "Once upon a time", "there was a little", "dog who"
MOMENTS = {
    "A runs": Moment(
        {"A": [3, 0, 5]},
        {3: ONCE, 0: TIME, 5: LITTLE},
        "its table names three blocks, wherever they were free",
    ),
    "B begins alike": Moment(
        {"A": [3, 0, 5], "B": [3, 0, 1]},
        {3: ONCE, 0: TIME, 5: LITTLE, 1: "cat"},
        "two full blocks are found by their keys, and held twice",
    ),
    "C is A's fork": Moment(
        {"A": [3, 0, 5], "B": [3, 0, 1], "C": [3, 0, 5]},
        {3: ONCE, 0: TIME, 5: LITTLE, 1: "cat"},
        "C goes on from A's text, and holds all of its blocks",
    ),
    "C writes": Moment(
        {"A": [3, 0, 5], "B": [3, 0, 1], "C": [3, 0, 2]},
        {3: ONCE, 0: TIME, 5: LITTLE, 1: "cat", 2: "dog who ran"},
        "A held block 5 too, so C wrote into a copy of it, block 2",
        copied=(5, 2),
    ),
    "A and C end": Moment(
        {"B": [3, 0, 1]},
        {3: ONCE, 0: TIME, 5: LITTLE, 1: "cat", 2: "dog who ran"},
        "what nobody holds is free, and stays until it is needed",
    ),
}


def refs(moment: str) -> list[int]:
    """How many tables hold each block."""
    tables = MOMENTS[moment].tables.values()
    return [sum(block in table for table in tables) for block in range(BLOCKS)]


def draw_block_tables(ax: Axes, moment: str) -> None:
    bare(ax, 14.2, 4.6)
    now = MOMENTS[moment]
    say(ax, 0.2, 0.35, "the pool", 10, ha="left", fontweight="bold")
    say(ax, 1.7, 0.36, "a block: keys and values of 4 tokens", 9, ha="left")
    for block, count in enumerate(refs(moment)):
        x, hue = 0.2 + 2.33 * block, lighter(BLUE, 0.7) if count else PALE
        words = now.content.get(block, "").replace(" upon", " upon\n").replace(" was", " was\n")
        box(ax, x, 0.95, 2.2, 0.9, hue, words, 9, edgecolor="#999999")
        say(ax, x + 1.1, 0.72, f"block {block}: held {count}x", 9)
    say(ax, 0.2, 2.3, "the tables", 10, ha="left", fontweight="bold")
    for row, (name, table) in enumerate(now.tables.items()):
        say(ax, 1.5, 2.85 + 0.62 * row, f"text {name}", 9, ha="right")
        for place, block in enumerate(table):
            x = 1.7 + 1.0 * place
            box(ax, x, 2.6 + 0.62 * row, 0.9, 0.5, HUES[name], str(block), 9)
    if now.copied:
        start, end = (1.3 + 2.33 * block for block in now.copied)
        arrow(ax, (start, 1.9), (end, 1.9), bend=-0.12)
        say(ax, (start + end) / 2, 2.65, "copied", 9)


def say_block_tables(moment: str) -> str:
    held = sum(count > 0 for count in refs(moment))
    places = sum(map(len, MOMENTS[moment].tables.values()))
    return (
        f"{moment}: {MOMENTS[moment].words}. The tables name {places} blocks in all, and {held} "
        "are held: a block that several tables name is there once."
    )


block_tables = Schematic(
    draw_block_tables, say_block_tables, (9.5, 3.4), {"moment": (list(MOMENTS), "C writes")}
)
