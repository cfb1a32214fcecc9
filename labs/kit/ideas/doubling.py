"""Recursive doubling: partners at distance 1, 2, 4 … swap all they have, until everyone has all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minitrain.lab.drawing.display import BLUE, GREEN, ORANGE
from minitrain.lab.drawing.figures import lighter
from minitrain.lab.drawing.shapes import PALE, arrow, bare, box, say
from minitrain.lab.ideas.schematic import Schematic
from minitrain.words import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEFT, ACROSS, WIDE, HIGH = 2.0, 1.25, 1.0, 1.1


def summed(rank: int, swaps: int) -> tuple[int, int]:
    """The first and the last rank whose parts this one has added up."""
    first = rank >> swaps << swaps
    return first, first + 2**swaps - 1


def draw_doubling(ax: Axes, ranks: int) -> None:
    swaps = (ranks - 1).bit_length()
    bare(ax, LEFT + ACROSS * ranks, HIGH * (swaps + 1) + 0.2)
    words = (
        "in a box: the ranks whose tensors are summed    arrow: the whole tensor, added on arrival"
    )
    say(ax, LEFT, HIGH * (swaps + 1), words, ha="left")
    for done in range(swaps + 1):
        y = HIGH * done + 0.15
        say(ax, LEFT - 0.2, y + 0.22, f"after swap {done}" if done else "at first", ha="right")
        for rank in range(ranks):
            first, last = summed(rank, done)
            shade = PALE if done == 0 else lighter(BLUE, 1 - 2**done / ranks)
            words = f"Σ {first}–{last}" if last > first else str(first)
            x = LEFT + ACROSS * rank
            box(ax, x, y, WIDE, 0.44, GREEN if 2**done == ranks else shade, words)
            if done < swaps:
                target = LEFT + ACROSS * (rank ^ 2**done) + WIDE / 2
                arrow(ax, (x + WIDE / 2, y + 0.44), (target, y + HIGH), ORANGE)


def say_doubling(ranks: int) -> str:
    swaps = (ranks - 1).bit_length()
    return (
        f"All-reduce by recursive doubling, {ranks} ranks: {plural(swaps, 'message')} from each. "
        "In a box stand the ranks whose tensors are summed. In each swap two partners send each "
        "other all that they have, the whole tensor: first neighbours, then ranks two apart, then "
        "four."
    )


recursive_doubling = Schematic(draw_doubling, say_doubling, (9.5, 4.0), {"ranks": ([2, 4, 8], 8)})
