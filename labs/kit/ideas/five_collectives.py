"""Five collectives, before and after: a column is a rank, a row a chunk of its tensor.

A box names whose data it is (a, b, c, d for ranks 0 to 3) and which chunk; Σ is the sum over ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE, PINK
from minitrain.lab.drawing.figures import INK
from minitrain.lab.drawing.shapes import PALE, bare, box, say
from minitrain.lab.ideas.schematic import Schematic

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RANKS = 4
COLORS = {"a": BLUE, "b": ORANGE, "c": GREEN, "d": PINK, "Σ": INK, "": PALE}
LEFT, WIDE, HIGH, GAP = 0.8, 0.5, 0.4, 0.35  # of a box, and between two collectives
BEFORE, AFTER = 0.7, 2.75  # where their first rows are
Held = list[list[str]]  # [rank][chunk]: "b2" is chunk 2 of rank 1's data, "" nothing yet

EMPTY: Held = [[""] * RANKS for _ in range(RANKS)]
OWN: Held = [[f"{'abcd'[rank]}{chunk}" for chunk in range(RANKS)] for rank in range(RANKS)]
SUM = [f"Σ{chunk}" for chunk in range(RANKS)]


def diagonal(held: Held) -> Held:
    """Chunk r on rank r, and nothing else."""
    return [[words if c == r else "" for c, words in enumerate(row)] for r, row in enumerate(held)]


def states(kind: str) -> tuple[Held, Held]:
    """What the ranks hold before and after."""
    everywhere = [SUM] * RANKS
    return {
        "broadcast": ([OWN[0], *EMPTY[1:]], [OWN[0]] * RANKS),
        "reduce-scatter": (OWN, diagonal(everywhere)),
        "all-gather": (diagonal(OWN), [[OWN[r][r] for r in range(RANKS)]] * RANKS),
        "all-reduce": (OWN, everywhere),
        "all-to-all": (OWN, [list(column) for column in zip(*OWN)]),
    }[kind]


KINDS = ("broadcast", "reduce-scatter", "all-gather", "all-reduce", "all-to-all")


def draw_collectives(ax: Axes) -> None:
    each = RANKS * WIDE + GAP
    bare(ax, LEFT + each * len(KINDS), AFTER + RANKS * HIGH + 0.5)
    for y, words in ((BEFORE, "before"), (AFTER, "after")):
        say(ax, LEFT - 0.1, y - 0.17, "rank", 8, ha="right")
        say(ax, LEFT - 0.1, y + RANKS * HIGH / 2, words, ha="right", fontweight="bold")
    for number, kind in enumerate(KINDS):
        x = LEFT + each * number
        say(ax, x + RANKS * WIDE / 2, 0.15, kind, 10, fontweight="bold")
        for y, held in zip((BEFORE, AFTER), states(kind)):
            for rank, row in enumerate(held):
                say(ax, x + WIDE * (rank + 0.5), y - 0.17, str(rank), 8)
                for chunk, words in enumerate(row):
                    place = (x + WIDE * rank, y + HIGH * chunk, WIDE - 0.05, HIGH - 0.05)
                    box(ax, *place, COLORS[words[:1]], words)
    legend = "a column: one rank's chunks    letter and colour: whose data, a of rank 0 to d of 3"
    legend += "    Σ0 = a0 + b0 + c0 + d0    grey: nothing"
    say(ax, LEFT, AFTER + RANKS * HIGH + 0.3, legend, ha="left")


def say_collectives() -> str:
    return (
        "Five collectives on four ranks, before and after. Broadcast: rank 0's four chunks end on "
        "every rank. Reduce-scatter: each rank has four chunks, and rank r ends with the sum of "
        "all ranks' chunk r. All-gather: rank r has chunk r, and every rank ends with all four. "
        "All-reduce: every rank ends with the sum of every chunk. All-to-all: rank r's chunk j "
        "becomes rank j's chunk r, as rows and columns change places. A letter names the rank "
        "whose data it is, a for 0 to d for 3; Σ is the sum over ranks."
    )


collectives = Schematic(draw_collectives, say_collectives, (9.8, 4.0))
