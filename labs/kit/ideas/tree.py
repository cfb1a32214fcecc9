"""A broadcast along a binomial tree: a row is a round, and in each twice as many ranks have it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, ORANGE
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS, HIGH, WIDE = 1.25, 1.1, 0.8


def rounds(ranks: int) -> int:
    """ceil(log2 N)."""
    return (ranks - 1).bit_length()


def draw_tree(ax: Axes, ranks: int) -> None:
    bare(ax, 1.6 + ACROSS * ranks, HIGH * (rounds(ranks) + 1))
    for number in range(rounds(ranks) + 1):
        y, have = HIGH * number + 0.15, min(ranks, 2**number)
        label = "at first" if number == 0 else f"after round {number}"
        say(ax, 1.4, y + 0.22, label, ha="right")
        for rank in range(ranks):
            x = 1.6 + ACROSS * rank
            box(ax, x, y, WIDE, 0.44, BLUE if rank < have else PALE, str(rank))
            if rank < have and rank + have < ranks:
                target = (x + ACROSS * have + WIDE / 2, y + HIGH)
                arrow(ax, (x + WIDE / 2, y + 0.44), target, ORANGE)
    legend = "blue: has the tensor    arrow: sends it"
    say(ax, 1.6, HIGH * (rounds(ranks) + 1) - 0.2, legend, ha="left")


def say_tree(ranks: int) -> str:
    fewer = f", not {ranks - 1}" if rounds(ranks) < ranks - 1 else ""
    return (
        f"A tree broadcasts to {ranks} ranks in {plural(rounds(ranks), 'round')}{fewer}. "
        "In each round every rank that has the tensor (blue) sends it to one that has not, so "
        "their number doubles: 1, 2, 4 and so on, until all have it."
    )


tree_broadcast = Schematic(draw_tree, say_tree, (9.5, 4.2), {"ranks": (2, 8, 8)})
