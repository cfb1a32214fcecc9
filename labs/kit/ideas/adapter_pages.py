"""Adapters in pages of one rank, and the tables by which the rows of a batch find theirs.

(Sheng et al. 2023, S-LoRA.) Page 0 holds zeros: it fills up what is shorter, and adds nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGES = ("zeros", "fr.0", "sql.0", "fr.1", "free", "fr.2", "sql.1")
HUES = {"fr": lighter(BLUE, 0.3), "sql": lighter(ORANGE, 0.3), "zeros": lighter(GREEN, 0.6)}
TABLES = {"fr": [1, 3, 5], "sql": [2, 6], None: []}
LEFT = 1.9
BATCHES = {
    "fr, sql": ("fr", "sql"),
    "fr, none, sql": ("fr", None, "sql"),
    "sql, none": ("sql", None),
}


def filled(batch: str) -> list[list[int]]:
    """Each row's table, filled up with page 0 to the longest."""
    tables = [TABLES[name] for name in BATCHES[batch]]
    longest = max(map(len, tables))
    return [table + [0] * (longest - len(table)) for table in tables]


def draw_adapter_pages(ax: Axes, batch: str) -> None:
    bare(ax, 12.8, 4.4)
    say(ax, 0.2, 0.3, "pages", 10, ha="left", fontweight="bold")
    for page, words in enumerate(PAGES):
        hue = HUES.get(words.partition(".")[0], PALE)
        box(ax, LEFT + 1.4 * page, 0.55, 1.25, 0.55, hue, words, 9, edgecolor="#999999")
        say(ax, LEFT + 0.62 + 1.4 * page, 0.3, str(page), 9)
    say(
        ax,
        0.2,
        1.75,
        "tables of the batch, filled up with page 0",
        10,
        ha="left",
        fontweight="bold",
    )
    for row, (name, table) in enumerate(zip(BATCHES[batch], filled(batch))):
        y = 2.1 + 0.75 * row
        say(ax, LEFT - 0.2, y + 0.27, f"row {row}: {name or 'no adapter'}", 9, ha="right")
        for place, page in enumerate(table):
            hue = HUES[name] if page and name else HUES["zeros"]
            box(ax, LEFT + 1.0 * place, y, 0.9, 0.55, hue, str(page), 9, edgecolor="#999999")
    lines = (
        "a page is one rank: a row of A and a column of B",
        "gathered by the tables: each row's own A and B",
        "then two products for the whole batch",
    )
    for n, words in enumerate(lines):
        say(ax, 6.2, 2.4 + 0.5 * n, words, 9, ha="left")


def say_adapter_pages(batch: str) -> str:
    tables = filled(batch)
    zeros = sum(table.count(0) for table in tables)
    return (
        f"A batch of {batch}: tables of {len(tables[0])} pages, of which page 0 fills "
        f"{plural(zeros, 'place')}. A page is one rank, a row of A and a column of B. Adapter fr "
        "has the pages 1, 3 and 5, sql 2 and 6; shorter tables, and that of a row without "
        "adapter, are filled up with page 0, which holds zeros."
    )


adapter_pages = Schematic(
    draw_adapter_pages, say_adapter_pages, (9.5, 3.2), {"batch": (list(BATCHES), "fr, none, sql")}
)
