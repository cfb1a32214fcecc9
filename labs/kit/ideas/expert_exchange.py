"""Experts on two ranks: rows travel to their expert by an all-to-all, and answers travel home.

A colour is an expert; each box says which rank its row came from. What arrives stands by source,
then by expert, and is sorted by expert before it is computed (Lepikhin et al. 2020, GShard).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import INK, lighter
from minitrain.lab.drawing.shapes import bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HUES = (BLUE, ORANGE, GREEN, PINK)
RANKS, OWN = 2, 2  # ranks, experts of each
LOADS = {
    "even": ((0, 0, 1, 2, 2, 3), (0, 1, 1, 2, 3, 3)),
    "uneven": ((0, 0, 0, 1, 2, 3), (0, 0, 0, 1, 1, 3)),
}  # the expert of each row of a rank, sorted
COLUMNS = (
    "own rows, by expert",
    "arrived, by source",
    "computed, by expert",
    "by source again",
    "answers at home",
)
BETWEEN = ("all-to-all", "sort", "sort back", "all-to-all")  # from a column to the next
LEFT, ACROSS, WIDE, HIGH, BAND = 0.95, 2.95, 2.25, 0.36, 3.6

Row = tuple[int, int, int]  # (rank it belongs to, its place there, its expert)


def stages(load: str) -> list[list[list[Row]]]:
    """stages[column][rank]: the rows that a rank has, from top to bottom."""
    own = [[(rank, i, e) for i, e in enumerate(rows)] for rank, rows in enumerate(LOADS[load])]
    everywhere = [row for rows in own for row in rows]
    arrived = [[row for row in everywhere if row[2] // OWN == rank] for rank in range(RANKS)]
    computed = [sorted(rows, key=lambda row: row[2]) for rows in arrived]
    return [own, arrived, computed, arrived, own]


def draw_expert_exchange(ax: Axes, load: str) -> None:
    right = LEFT + (len(COLUMNS) - 1) * ACROSS + WIDE
    foot = 0.95 + BAND + HIGH * len(LOADS[load][-1])
    bare(ax, right + 0.1, foot + 0.2)
    legend = "expert 2 ← rank 0: a row for expert 2, of a token of rank 0    a colour: one expert"
    say(ax, LEFT, foot, legend, 8.5, ha="left")
    columns = stages(load)
    for column, words in enumerate(COLUMNS):
        say(ax, LEFT + ACROSS * column + WIDE / 2, 0.22, words, fontweight="bold")
    for gap, words in enumerate(BETWEEN):
        say(ax, LEFT + ACROSS * gap + (WIDE + ACROSS) / 2, 0.53, words, 8.5)
    for rank in range(RANKS):
        top = 0.7 + BAND * rank
        say(ax, 0.45, top + 0.2, f"rank {rank}", fontweight="bold")
        say(ax, 0.45, top + 0.55, f"experts\n{OWN * rank} and {OWN * rank + 1}", 8, va="top")
    ax.plot([0, right], [0.55 + BAND] * 2, color=INK, linewidth=0.8)
    for column, ranks in enumerate(columns):
        x = LEFT + ACROSS * column
        for row in (row for rows in ranks for row in rows):
            hue, y = HUES[row[2]], height_of(ranks, row)
            words = f"expert {row[2]} ← rank {row[0]}"
            box(ax, x, y - 0.15, WIDE, 0.3, lighter(hue, 0.25), words, 8.5)
            if column:
                start = height_of(columns[column - 1], row)
                ax.plot([x - ACROSS + WIDE + 0.05, x - 0.05], [start, y], color=hue, linewidth=1)


def height_of(ranks: list[list[Row]], row: Row) -> float:
    """The middle of a row's box."""
    rank = next(rank for rank, rows in enumerate(ranks) if row in rows)
    return 0.7 + BAND * rank + HIGH * ranks[rank].index(row) + 0.18


def say_expert_exchange(load: str) -> str:
    own, _, computed, *_ = stages(load)
    total = sum(map(len, own))
    left = sum(row[2] // OWN != rank for rank, rows in enumerate(own) for row in rows)
    counts = " and ".join(str(len(rows)) for rows in computed)
    return (
        f"With an {load} load the two ranks compute {counts} of {total} rows. "
        f"{left} rows go to the other rank, in the first all-to-all, and come home in the second. "
        "Five columns for each rank, joined by lines in the colour of an expert: its own rows "
        "sorted by expert, what arrived, by source, the same sorted by expert, the answers by "
        "source again, answers at home. A box names its expert and the rank that it came from."
    )


expert_exchange = Schematic(
    draw_expert_exchange, say_expert_exchange, (9.5, 5.4), {"load": ["even", "uneven"]}
)
